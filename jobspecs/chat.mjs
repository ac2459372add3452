// Streams one chat completion with nothing but Node: node chat.mjs BASE_URL MODEL QUESTION
// The key is taken from OPENAI_API_KEY; `heteroflow dev` needs none.
const [base, model, question] = process.argv.slice(2)
const deadline = Date.now() + 60_000

async function ask() {
  const response = await fetch(`${base}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${process.env.OPENAI_API_KEY ?? 'none'}` },
    body: JSON.stringify({ model, stream: true, stream_options: { include_usage: true }, messages: [{ role: 'user', content: question }] }),
  })
  // A model that is still loading has no backend yet.
  if ((response.status === 503 || response.status === 404) && Date.now() < deadline) return false
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
  let rest = ''
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    rest += bytes
    for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
      const data = rest.slice(0, end).replace(/^data: /, '')
      if (data === '[DONE]') continue
      const event = JSON.parse(data)
      if (event.error) throw new Error(event.error.message)
      process.stdout.write(event.choices[0]?.delta?.content ?? '')
      if (event.usage) process.stdout.write(`\n(${event.usage.prompt_tokens} prompt tokens, ${event.usage.completion_tokens} completion tokens)\n`)
    }
  }
  return true
}

while (!(await ask())) await new Promise((wake) => setTimeout(wake, 500))
