// Calls the gateway with the official Anthropic SDK and prints what came back as one JSON object.
// usage: node anthropic.mjs BASE_URL API_KEY MODEL, the URL without /v1
import Anthropic from '@anthropic-ai/sdk'

const [baseURL, apiKey, model] = process.argv.slice(2)
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 })
const ask = { model, max_tokens: 6, system: 'Be brief.', messages: [{ role: 'user', content: 'Count to five, please.' }] }

const whole = await client.messages.create(ask)

let streamed = ''
const stream = client.messages.stream(ask).on('text', (text) => { streamed += text })
const last = await stream.finalMessage()

const models = []
for await (const m of client.models.list()) models.push(m.id)

let missing = null
try {
  await client.messages.create({ ...ask, model: 'no-such-model' })
} catch (error) {
  missing = { status: error.status, type: error.error?.error?.type, name: error.constructor.name }
}

console.log(JSON.stringify({
  whole: { text: whole.content[0].text, model: whole.model, usage: whole.usage, stop: whole.stop_reason },
  streamed, last: { text: last.content[0].text, usage: last.usage, stop: last.stop_reason }, models, missing,
}))
