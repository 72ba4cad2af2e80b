async def test_health_follows_the_service(service, serve, http):
    url = await serve(service)
    async with http.get(f"{url}/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    service.unready_reason = "stage 2 is loading"
    async with http.get(f"{url}/health") as response:
        assert response.status == 503
        assert (await response.json())["reason"] == "stage 2 is loading"


async def test_cluster_is_the_services(service, serve, http):
    async with http.get(f"{await serve(service)}/cluster") as response:
        assert await response.json() == service.cluster()


async def test_models(service, serve, http):
    url = await serve(service)
    async with http.get(f"{url}/v1/models") as response:
        (entry,) = (await response.json())["data"]
    assert entry["id"] == "tiny/model" and entry["vocabulary_size"] == 300
    for path in ("tiny/model", "tiny%2Fmodel"):
        async with http.get(f"{url}/v1/models/{path}") as response:
            assert await response.json() == entry
    async with http.get(f"{url}/v1/models/other") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"
