// Calls the gateway with the official OpenAI SDK and prints what came back as one JSON object.
// usage: node client.mjs BASE_URL API_KEY MODEL
import OpenAI from 'openai'

const [baseURL, apiKey, model] = process.argv.slice(2)
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 })
const messages = [{ role: 'user', content: 'Count to five, please.' }]

const whole = await client.chat.completions.create({ model, messages, max_tokens: 6 })

let streamed = ''
let chunksWithoutChoices = 0
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 6, stream: true })) {
  if (chunk.choices.length === 0) chunksWithoutChoices++
  streamed += chunk.choices[0]?.delta?.content ?? ''
}

let streamUsage = null
const asked = await client.chat.completions.create({
  model, messages, max_tokens: 6, stream: true, stream_options: { include_usage: true },
})
for await (const chunk of asked) streamUsage = chunk.usage ?? streamUsage

const text = await client.completions.create({ model, prompt: 'one two', max_tokens: 3 })
const embedding = await client.embeddings.create({ model, input: ['a', 'b'] })
const models = (await client.models.list()).data.map((m) => m.id)

let missing = null
try {
  await client.chat.completions.create({ model: 'no-such-model', messages })
} catch (error) {
  missing = { status: error.status, code: error.code, type: error.type }
}

console.log(JSON.stringify({
  whole: { text: whole.choices[0].message.content, usage: whole.usage, model: whole.model },
  streamed, chunksWithoutChoices, streamUsage,
  text: { text: text.choices[0].text, usage: text.usage },
  embeddings: embedding.data.map((d) => d.embedding.length), models, missing,
}))
