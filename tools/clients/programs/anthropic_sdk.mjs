// Anthropic's own client for Node: messages, streams, tools, counting.
import Anthropic from "@anthropic-ai/sdk";

const [url, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "How warm is it in Oldford?" }];
const asked = { model, max_tokens: 200, messages };
const tried = (what, holds) => {
  if (!holds) throw new Error(what);
  console.log("ok", what);
};

tried("messages", (await client.messages.create(asked)).content[0].text.includes("21"));
tried("stream", (await client.messages.stream(asked).finalText()).includes("21"));
tried("count_tokens", (await client.messages.countTokens({ model, messages })).input_tokens > 0);
const input_schema = { type: "object", properties: { town: { type: "string" } } };
for (const type of ["auto", "any"]) {
  const answer = await client.messages.create({
    ...asked, tools: [{ name: "get_weather", input_schema }], tool_choice: { type },
  });
  tried(`tool_choice ${type}`, answer.content.at(-1).input.town === "Oldford");
}
