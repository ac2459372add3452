package inference

// Habits are what somebody who relays requests to a kind of engine has to know of it. The zero value is what is taken
// of an engine that is not known.
//
// Where the kinds do not differ for the gateway there is nothing here: all of them tell usage where OpenAI's API has it,
// in a stream when stream_options asks for it, and all stop working for a client whose connection closes.
type Habits struct {
	// HeadersWithToken: the headers of a stream come with its first token, and not at once, so that a queue or a long
	// prompt looks like silence.
	HeadersWithToken bool
}

// HabitsOf gives what is known of a kind of engine. Sources, read and not tried: SGLang's serving_chat.py and
// serving_completions.py await the first chunk before they answer 200; llama.cpp's server-context.cpp takes the first
// result before the headers of a stream. vLLM's and TensorRT-LLM's openai_server answer at once.
func HabitsOf(kind string) Habits {
	return Habits{HeadersWithToken: kind == SGLang || kind == LlamaCPP}
}
