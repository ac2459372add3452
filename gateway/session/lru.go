package session

// lru maps hashes to small values and knows which were used last. Nodes lie in one slice and point by index, so that a
// full table costs the garbage collector nothing.
type lru[V any] struct {
	at     map[uint64]int32
	nodes  []node[V]
	newest int32
	oldest int32
	free   []int32
}

type node[V any] struct {
	key          uint64
	value        V
	newer, older int32
}

const none = int32(-1)

func newLRU[V any]() lru[V] { return lru[V]{at: map[uint64]int32{}, newest: none, oldest: none} }

func (l *lru[V]) len() int { return len(l.at) }

// get does not count as a use.
func (l *lru[V]) get(key uint64) (*V, bool) {
	i, ok := l.at[key]
	if !ok {
		return nil, false
	}
	return &l.nodes[i].value, true
}

// use finds or adds a key, makes it the newest, and reports whether it was there. The pointer holds until the next call.
func (l *lru[V]) use(key uint64) (value *V, had bool) {
	i, had := l.at[key]
	switch {
	case had:
		l.unlink(i)
	case len(l.free) > 0:
		i = l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
	default:
		i = int32(len(l.nodes))
		l.nodes = append(l.nodes, node[V]{})
	}
	if !had {
		l.nodes[i] = node[V]{key: key}
		l.at[key] = i
	}
	n := &l.nodes[i]
	n.newer, n.older = none, l.newest
	if l.newest != none {
		l.nodes[l.newest].newer = i
	} else {
		l.oldest = i
	}
	l.newest = i
	return &n.value, had
}

func (l *lru[V]) unlink(i int32) {
	n := &l.nodes[i]
	if n.newer != none {
		l.nodes[n.newer].older = n.older
	} else {
		l.newest = n.older
	}
	if n.older != none {
		l.nodes[n.older].newer = n.newer
	} else {
		l.oldest = n.newer
	}
}

func (l *lru[V]) remove(key uint64) (V, bool) {
	i, ok := l.at[key]
	if !ok {
		var zero V
		return zero, false
	}
	value := l.nodes[i].value
	l.unlink(i)
	delete(l.at, key)
	l.nodes[i] = node[V]{}
	l.free = append(l.free, i)
	return value, true
}

// last is the key used longest ago.
func (l *lru[V]) last() (key uint64, value *V, ok bool) {
	if l.oldest == none {
		return 0, nil, false
	}
	n := &l.nodes[l.oldest]
	return n.key, &n.value, true
}

// fromNewest calls f for each key, newest first, until it returns false. f must not change the order.
func (l *lru[V]) fromNewest(f func(key uint64, value *V) bool) {
	for i := l.newest; i != none; i = l.nodes[i].older {
		if !f(l.nodes[i].key, &l.nodes[i].value) {
			return
		}
	}
}
