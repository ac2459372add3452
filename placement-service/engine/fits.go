package engine

// Fits is whether Decide would place the request. It spares the reason why not.
func (e *Engine) Fits(s Snapshot, r Request) bool {
	return r.Loose == "" && e.decide(&s, &r, false).Placed
}
