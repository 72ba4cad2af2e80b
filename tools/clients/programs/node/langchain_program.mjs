// LangChain for JavaScript over OpenAI's and Anthropic's dialects.
import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { ask, model, tried, triedTooLong, url } from "./asked.mjs";

const openai = {
  model, apiKey: "none", maxRetries: 0, configuration: { baseURL: `${url}/v1` },
};
const chats = {
  chat: new ChatOpenAI(openai),
  responses: new ChatOpenAI({ ...openai, useResponsesApi: true }),
  messages: new ChatAnthropic({ model, apiKey: "none", maxRetries: 0, anthropicApiUrl: url }),
};
const weather = z.object({ town: z.string(), degrees: z.number() });
const getWeather = tool(async ({ town }) => `${town}: 21 degrees`, {
  name: "get_weather", description: "Weather.", schema: z.object({ town: z.string() }),
});

for (const [where, chat] of Object.entries(chats)) {
  tried(`${where} invoke`, (await chat.invoke(ask)).text.includes("21"));
  let said = "";
  for await (const chunk of await chat.stream(ask)) said += chunk.text;
  tried(`${where} stream`, said.includes("21"));
  for (const method of ["jsonSchema", "functionCalling"]) {
    const asked = chat.withStructuredOutput(weather, { method, name: "weather" });
    tried(`${where} ${method}`, (await asked.invoke(ask)).degrees === 21);
  }
  for (const tool_choice of ["auto", "any"]) {
    const first = await chat.bindTools([getWeather], { tool_choice }).invoke(ask);
    tried(`${where} tool_choice ${tool_choice}`, first.tool_calls[0].args.town === "Oldford");
    const result = new ToolMessage({ content: "21", tool_call_id: first.tool_calls[0].id });
    const turn = [new HumanMessage(ask), first, result];
    const last = await chat.bindTools([getWeather]).invoke(turn);
    tried(`${where} tool result`, last.text.includes("21"));
  }
  await triedTooLong((text) => chat.invoke(text), `${where} too long`);
}
