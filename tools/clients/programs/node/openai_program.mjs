// OpenAI's own client for Node: chat, tools, structured output, responses.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { messages, model, tried, triedTooLong, url } from "./asked.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const Weather = z.object({ town: z.string(), degrees: z.number() });

let answer = await client.chat.completions.create({ model, messages });
tried("chat", answer.choices[0].message.content.includes("21"));
let said = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  said += chunk.choices[0]?.delta?.content ?? "";
}
tried("stream", said.includes("21"));
answer = await client.chat.completions.parse({
  model, messages, response_format: zodResponseFormat(Weather, "weather"),
});
tried("parse", answer.choices[0].message.parsed.degrees === 21);
const parameters = { type: "object", properties: { town: { type: "string" } } };
const run = client.chat.completions.runTools({
  model, messages,
  tools: [{ type: "function", function: {
    name: "get_weather", parameters, parse: JSON.parse, function: ({ town }) => `${town}: 21`,
  } }],
});
tried("runTools", (await run.finalContent()).includes("21"));
const stream = client.responses.stream({ model, input: "How warm?" });
tried("responses", (await stream.finalResponse()).output_text.includes("21"));
await triedTooLong((input) => client.responses.create({ model, input }));
