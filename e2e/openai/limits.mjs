// Meets the gateway's limits with the official OpenAI SDK as it is, and prints what it did as one JSON object.
// usage: node limits.mjs BASE_URL KEY_ONE_AT_A_TIME KEY_WITHOUT_BUDGET MODEL
import OpenAI from 'openai'

const [baseURL, single, poor, model] = process.argv.slice(2)
const messages = [{ role: 'user', content: 'Count to five, please.' }]

const statuses = []
const counting = async (url, init) => {
  const response = await fetch(url, init)
  statuses.push(response.status)
  return response
}

// A stream that runs keeps the one place that there is; the SDK comes again after Retry-After until it has it.
const client = new OpenAI({ baseURL, apiKey: single, maxRetries: 20, fetch: counting })
const stream = await client.chat.completions.create({ model, messages, max_tokens: 300, stream: true })
const reading = (async () => { for await (const _ of stream); })()
const second = await client.chat.completions.create({ model, messages, max_tokens: 2 })
await reading
const waited = { statuses: [...statuses], text: second.choices[0].message.content }

// At a budget coming again is of no use, and the SDK does not.
statuses.length = 0
let refused = null
try {
  await new OpenAI({ baseURL, apiKey: poor, maxRetries: 20, fetch: counting }).chat.completions.create({ model, messages, max_tokens: 2 })
} catch (error) {
  refused = { kind: error.constructor.name, status: error.status, code: error.code, type: error.type }
}
console.log(JSON.stringify({ waited, refused: { ...refused, statuses } }))
