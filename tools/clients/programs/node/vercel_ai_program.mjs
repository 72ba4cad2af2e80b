// Vercel's AI SDK with its four ways to this API.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { ask as prompt, model as name, tried, triedTooLong, url } from "./asked.mjs";

const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  compatible: createOpenAICompatible({
    name: "molink", baseURL, apiKey: "none", supportsStructuredOutputs: true,
  })(name),
  chat: openai.chat(name),
  responses: openai.responses(name),
  anthropic: createAnthropic({ baseURL, apiKey: "none" })(name),
};
const tools = {
  get_weather: tool({
    description: "Weather.",
    inputSchema: z.object({ town: z.string() }),
    execute: async ({ town }) => `${town}: 21 degrees`,
  }),
};

for (const [kind, model] of Object.entries(models)) {
  const asked = { model, prompt, maxRetries: 0 };
  tried(`${kind} text`, (await generateText(asked)).text.includes("21"));
  tried(`${kind} stream`, (await streamText(asked).text).includes("21"));
  const steps = await generateText({ ...asked, tools, stopWhen: stepCountIs(3) });
  tried(`${kind} tools`, steps.text.includes("21") && steps.steps.length === 2);
  const forced = await generateText({ ...asked, tools, toolChoice: "required" });
  tried(`${kind} required`, forced.toolCalls[0].input.town === "Oldford");
  const schema = z.object({ town: z.string(), degrees: z.number() });
  tried(`${kind} object`, (await generateObject({ ...asked, schema })).object.degrees === 21);
  await triedTooLong((prompt) => generateText({ ...asked, prompt }), `${kind} too long`);
}
