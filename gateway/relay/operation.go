package relay

import (
	"slices"
	"strings"
)

// Shape is the protocol that an operation speaks: how its errors look and how its streams end.
type Shape int

// The protocols.
const (
	OpenAI Shape = iota
	Responses
	Anthropic
)

// Operation is one of the things an engine can be asked for.
type Operation struct {
	Name  string // as usage tells it
	Shape Shape
	// AskUsage: its streams tell their usage when stream_options asks for it.
	AskUsage bool
	Form     bool // the body is multipart/form-data
	// Token is in each event that gives out a token; empty for what gives out none.
	Token string
	// Free: no model is run.
	Free bool
	// Text: what is asked is text, so that its tokens can be estimated.
	Text bool
}

var (
	chat     = Operation{Name: "chat.completions", AskUsage: true, Token: `"delta"`, Text: true}
	text     = Operation{Name: "completions", AskUsage: true, Token: `"text"`, Text: true}
	rerank   = Operation{Name: "rerank", Text: true}
	score    = Operation{Name: "score", Text: true}
	tokenize = Operation{Name: "tokenize", Free: true}
	untoken  = Operation{Name: "detokenize", Free: true}
)

// operations by path. Engines serve some of them with and without /v1. Sources: OpenAI's and Anthropic's API
// references; vLLM's "OpenAI-Compatible Server" for rerank, score and tokenize.
var operations = map[string]Operation{
	"/v1/chat/completions":      chat,
	"/v1/completions":           text,
	"/v1/embeddings":            {Name: "embeddings", Text: true},
	"/v1/responses":             {Name: "responses", Shape: Responses, Token: `.delta"`, Text: true},
	"/v1/messages":              {Name: "messages", Shape: Anthropic, Token: `block_delta"`, Text: true},
	"/v1/messages/count_tokens": {Name: "messages.count_tokens", Shape: Anthropic, Free: true},
	"/v1/rerank":                rerank,
	"/v2/rerank":                rerank,
	"/rerank":                   rerank,
	"/v1/score":                 score,
	"/score":                    score,
	"/v1/audio/transcriptions":  {Name: "audio.transcriptions", Form: true, Token: `"delta"`},
	"/v1/audio/translations":    {Name: "audio.translations", Form: true, Token: `"delta"`},
	"/v1/audio/speech":          {Name: "audio.speech"},
	"/v1/images/generations":    {Name: "images.generations"},
	"/v1/images/edits":          {Name: "images.edits", Form: true},
	"/v1/images/variations":     {Name: "images.variations", Form: true},
	"/v1/tokenize":              tokenize,
	"/tokenize":                 tokenize,
	"/v1/detokenize":            untoken,
	"/detokenize":               untoken,
}

// Find gives the operation of a path.
func Find(path string) (Operation, bool) {
	o, ok := operations[path]
	return o, ok
}

// Paths are those of all operations, sorted.
func Paths() []string {
	paths := make([]string, 0, len(operations))
	for path := range operations {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// Unknown is the operation of a path of the engine's own, which a model's owner has opened.
func Unknown(path string) Operation {
	return Operation{Name: strings.ReplaceAll(strings.Trim(path, "/"), "/", ".")}
}

// ShapeOf is the protocol whose errors a path answers with.
func ShapeOf(path string) Shape {
	if strings.HasPrefix(path, "/v1/messages") {
		return Anthropic
	}
	return operations[path].Shape
}
