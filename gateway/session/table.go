package session

import "time"

// Pin says which backend a session's last request was sent to.
type Pin struct {
	Key     Key
	Backend string
	At      time.Time // when it was sent there, within a quarter of a pin's life
	Tokens  int       // of the prompt that was sent, within a quarter
}

// Table remembers pins. It holds at most so many, the latest used, and none that was not used for a while. It is not
// safe for concurrent use.
type Table struct {
	size int
	ttl  time.Duration
	pins lru[pin]
	uses uint64
	// latest is the latest version that was seen of any pin. What is set here is set after it, also where another's clock
	// is ahead and the pin that was known of it is forgotten.
	latest time.Time
}

type pin struct {
	backend string
	at      time.Time // of the last use
	used    uint64    // counts uses; in the order of the list
	told    uint64    // use at which others must learn of it; 0 when another told us and sent it
	version time.Time // what others know of it, by the clock of whoever sent it; of two, the later holds
	spread  time.Time // when others last learned of it, by our clock
	tokens  int       // at that version
}

// NewTable makes a table of so many keys, each kept for ttl after its last use.
func NewTable(size int, ttl time.Duration) *Table {
	return &Table{size: size, ttl: ttl, pins: newLRU[pin]()}
}

// Found is what a table knows of a session.
type Found struct {
	Backend string // where its last request went
	Level   int    // of the first key that is known
	// Elsewhere is the prompt tokens of that request when another instance sent it, and 0 when this one did: those
	// got into the backend's cache, though nothing here has seen them.
	Elsewhere int
	At        time.Time // when it was sent, by our clock
}

// Find looks the keys up in the order of their levels. It is false when none is known.
func (t *Table) Find(keys Keys, now time.Time) (f Found, ok bool) {
	for level, k := range keys {
		if k == 0 {
			continue
		}
		if p, ok := t.pins.get(uint64(k)); ok && now.Sub(p.at) < t.ttl {
			f = Found{Backend: p.backend, Level: level, At: p.at}
			if p.told == 0 {
				f.Elsewhere = p.tokens
			}
			return f, true
		}
	}
	return Found{}, false
}

// Put pins every key of a request that was sent. Forget takes the mark.
func (t *Table) Put(keys Keys, backend string, tokens int, now time.Time) (mark uint64) {
	for _, k := range keys {
		if k == 0 {
			continue
		}
		p := t.use(k, now)
		// Others learn of a pin that is where it was only now and then: so that it does not expire there, and that they
		// know how much of the conversation the backend has.
		if p.backend != backend || now.Sub(p.spread) > t.ttl/4 || tokens > p.tokens+p.tokens/4 {
			version := now
			if !version.After(t.latest) {
				version = t.latest.Add(1)
			}
			t.latest = version
			p.backend, p.tokens, p.version, p.spread, p.told = backend, tokens, version, now, p.used
		}
		if p.told == 0 {
			p.told = 1 // sent by this instance now, as others know it
		}
	}
	t.trim(now)
	return t.uses
}

func (t *Table) use(k Key, now time.Time) *pin {
	t.uses++
	p, _ := t.pins.use(uint64(k))
	p.at, p.used = now, t.uses
	return p
}

func (t *Table) trim(now time.Time) {
	for {
		key, p, ok := t.pins.last()
		if !ok || t.pins.len() <= t.size && now.Sub(p.at) < t.ttl {
			return
		}
		t.pins.remove(key)
	}
}

// Forget drops the pins of a request that did not get to the backend, unless they were used since.
func (t *Table) Forget(keys Keys, backend string, mark uint64) {
	for _, k := range keys {
		if p, ok := t.pins.get(uint64(k)); ok && p.backend == backend && p.used <= mark {
			t.pins.remove(uint64(k))
		}
	}
}

// Drop forgets every pin on a backend that is gone.
func (t *Table) Drop(backend string) {
	var gone []uint64
	t.pins.fromNewest(func(key uint64, p *pin) bool {
		if p.backend == backend {
			gone = append(gone, key)
		}
		return true
	})
	for _, key := range gone {
		t.pins.remove(key)
	}
}

// Len is the number of pins held.
func (t *Table) Len() int { return t.pins.len() }

// Changes lists the pins that were set here after the mark, and the mark for the next call. The first mark is 0. It
// looks only at what was used since, so that asking often costs little.
func (t *Table) Changes(since uint64) (pins []Pin, next uint64) {
	t.pins.fromNewest(func(key uint64, p *pin) bool {
		if p.used <= since {
			return false
		}
		if p.told > since {
			pins = append(pins, Pin{Key: Key(key), Backend: p.backend, At: p.version, Tokens: p.tokens})
		}
		return true
	})
	return pins, t.uses
}

// Merge takes in pins that another instance set. Of two, the later holds; of two at one moment, the greater backend,
// so that all instances end up with the same. Ahead is by how much the clock of who told them is ahead of ours: how long
// a pin lives is counted by our own.
func (t *Table) Merge(pins []Pin, ahead time.Duration, now time.Time) {
	for _, in := range pins {
		used := in.At.Add(-ahead)
		if in.Key == 0 || now.Sub(used) >= t.ttl {
			continue
		}
		if in.At.After(t.latest) {
			t.latest = in.At
		}
		if p, ok := t.pins.get(uint64(in.Key)); ok && (p.version.After(in.At) || p.version.Equal(in.At) && p.backend >= in.Backend) {
			continue
		}
		if used.After(now) {
			used = now // set by a third one, whose clock is ahead still: its pins must not live longer than ours
		}
		p := t.use(in.Key, used)
		p.backend, p.tokens, p.version, p.spread, p.told = in.Backend, in.Tokens, in.At, used, 0
	}
	t.trim(now)
}
