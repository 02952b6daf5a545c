// The AI SDK against a running supervisor: `ai_sdk.mjs URL MODEL`. Four of its providers, each whole and streamed.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const providers = {
  "openai chat": openai.chat,
  "openai responses": openai.responses,
  anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" }),
  "openai-compatible": createOpenAICompatible({ name: "here", baseURL: `${url}/v1`, includeUsage: true }),
};
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ celsius: z.boolean() }),
});

const question = { role: "user", content: "Name three colours." };
const forced = { tools: { weather }, toolChoice: { type: "tool", toolName: "weather" }, maxOutputTokens: 200 };

for (const [name, provider] of Object.entries(providers)) {
  const began = Date.now();
  const asked = { model: provider(model), maxOutputTokens: 24, temperature: 0, maxRetries: 0 };
  const first = { ...asked, messages: [question] };
  const whole = await generateText(first);
  assert.ok(whole.text.length > 0, `${name}: no text`);
  assert.ok(whole.usage.outputTokens > 0, `${name}: no usage`);

  const streamed = streamText(first);
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.equal(text, whole.text, `${name}: the stream says something else`);
  assert.ok((await streamed.usage).outputTokens > 0, `${name}: no usage in the stream`);

  const called = await generateText({ ...first, ...forced });
  assert.equal(called.toolCalls.length, 1, `${name}: no call`);
  const [call] = called.toolCalls;
  assert.equal(typeof call.input.celsius, "boolean", `${name}: a wrong argument`);
  assert.equal(called.finishReason, "tool-calls", `${name}: it ended for another reason`);

  const calling = streamText({ ...first, ...forced });
  const calls = [];
  for await (const part of calling.fullStream) if (part.type === "tool-call") calls.push(part);
  assert.deepEqual(calls.map((each) => each.input), [call.input], `${name}: the stream calls something else`);

  // The result goes back with the call as this provider tells it; for Responses as references to kept items.
  const result = { toolCallId: call.toolCallId, toolName: "weather", output: { type: "json", value: { degrees: 20 } } };
  const told = [question, ...called.response.messages, { role: "tool", content: [{ type: "tool-result", ...result }] }];
  const after = await generateText({ ...asked, messages: told });
  assert.ok(after.text.length > 0, `${name}: nothing after the result`);

  // Each reads the error in its own API's shape.
  await assert.rejects(generateText({ ...first, model: provider("nobody") }), (error) => {
    assert.equal(error.statusCode, 404, `${name}: ${error}`);
    assert.match(error.message, /does not exist here/, `${name}: another message`);
    return true;
  });
  console.log(name, "ok in", Math.round((Date.now() - began) / 1000), "s");
}
