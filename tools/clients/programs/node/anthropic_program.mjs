// Anthropic's own client for Node: messages, streams, tools, counting.
import Anthropic from "@anthropic-ai/sdk";
import { messages, model, tried, triedTooLong, url } from "./asked.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const asked = { model, max_tokens: 200, messages };

tried("messages", (await client.messages.create(asked)).content[0].text.includes("21"));
tried("stream", (await client.messages.stream(asked).finalText()).includes("21"));
tried("count_tokens", (await client.messages.countTokens({ model, messages })).input_tokens > 0);
const input_schema = { type: "object", properties: { town: { type: "string" } } };
const tools = [{ name: "get_weather", input_schema }];
for (const type of ["auto", "any"]) {
  const answer = await client.messages.create({ ...asked, tools, tool_choice: { type } });
  const use = answer.content.at(-1);
  tried(`tool_choice ${type}`, use.input.town === "Oldford");
  const result = { type: "tool_result", tool_use_id: use.id, content: "21" };
  const turn = [...messages, answer, { role: "user", content: [result] }];
  const last = await client.messages.create({
    ...asked, tools, messages: turn.map(({ role, content }) => ({ role, content })),
  });
  tried("tool result", last.content[0].text.includes("21"));
}
await triedTooLong((content) => client.messages.create({
  ...asked, messages: [{ role: "user", content }],
}));
