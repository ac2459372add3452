// Package session tells which requests belong together: the keys under which a conversation is found again, and the
// running hashes of a prompt by which a common beginning is found. Which backend is chosen does not belong here.
package session

// Key stands for one thing that tells a session, together with its tenant and model. Zero is none.
type Key uint64

// Levels of Keys, in the order in which they are looked up.
const (
	LevelHeader   = iota // the header X-Session-Id
	LevelCacheKey        // the field prompt_cache_key
	LevelUser            // the field user
	LevelAnswered        // system prompt, first user message and first answer
	LevelOpening         // system prompt and first user message
	Levels
)

// Keys are a request's keys by level, zero where it has none.
type Keys [Levels]Key

// Block ends one piece of a prompt.
type Block struct {
	Hash   uint64 // of the whole prompt up to the end of this piece
	Tokens int    // up to the end of this piece
}

// Prompt is what choosing a backend needs to know of a request. The zero value is a request of which nothing is known.
type Prompt struct {
	Keys   Keys
	Chain  []Block // from the beginning, may end before the prompt does
	Tokens int     // of the whole prompt, estimated
}
