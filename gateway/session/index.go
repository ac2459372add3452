package session

import "time"

// Index is what one backend's prefix cache probably holds: the blocks of the prompts that were sent there, those
// used longest ago dropped first, as engines drop them. It is not safe for concurrent use.
type Index struct {
	capacity int // tokens
	held     int
	blocks   lru[block] // by running hash
}

type block struct {
	tokens int32
	used   time.Time
}

// NewIndex makes an index of a cache of so many tokens.
func NewIndex(capacity int) *Index { return &Index{capacity: capacity, blocks: newLRU[block]()} }

// Match is the number of blocks at the beginning of the chain that the backend holds, and their tokens.
func (x *Index) Match(chain []Block) (blocks, tokens int) {
	for _, b := range chain {
		if _, ok := x.blocks.get(b.Hash); !ok {
			break
		}
		blocks, tokens = blocks+1, b.Tokens
	}
	return blocks, tokens
}

// Add notes that the chain was sent. The first block becomes the newest, because a prefix is of no use without its
// beginning.
func (x *Index) Add(chain []Block, now time.Time) {
	for i := len(chain) - 1; i >= 0; i-- {
		b, had := x.blocks.use(chain[i].Hash)
		b.used = now
		if had {
			continue
		}
		before := 0
		if i > 0 {
			before = chain[i-1].Tokens
		}
		b.tokens = int32(chain[i].Tokens - before)
		x.held += int(b.tokens)
	}
	x.trim()
}

func (x *Index) trim() {
	for x.held > x.capacity {
		key, b, ok := x.blocks.last()
		if !ok {
			return
		}
		x.held -= int(b.tokens)
		x.blocks.remove(key)
	}
}

// Keeps reports whether something sent at that time would be held still: it is not where the cache is full of what
// was used later.
func (x *Index) Keeps(at time.Time) bool {
	_, oldest, ok := x.blocks.last()
	return !ok || x.held < x.capacity*9/10 || !at.Before(oldest.used)
}

// Remove forgets blocks of a chain that did not get there after all.
func (x *Index) Remove(blocks []Block) {
	for _, b := range blocks {
		if gone, ok := x.blocks.remove(b.Hash); ok {
			x.held -= int(gone.tokens)
		}
	}
}

// Tokens is how many tokens the index takes the backend to hold, at most its capacity.
func (x *Index) Tokens() int { return x.held }
