package watch

import "time"

// silence is how long Nomad may say nothing before it counts as away: a quiet stream says every 30 seconds that it lives.
const silence = 75 * time.Second

// Why a world is stale.
const (
	whyUnread = "Nomad's nodes and allocations are not read yet"
	whyAway   = "Nomad cannot be reached"
	whySilent = "Nomad does not answer"
)

// Stale says why the world may be another one by now, empty while it is kept up to date. What it holds is then from AsOf.
func (w *World) Stale(now time.Time) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	switch {
	case !w.isReady[nodesPart] || !w.isReady[allocsPart]:
		return whyUnread
	case w.lost[nodesPart] || w.lost[allocsPart]:
		return whyAway
	case now.Sub(w.asOf) > silence:
		return whySilent
	}
	return ""
}

// The parts of the world that are followed, each by a connection of its own.
const (
	nodesPart = iota
	allocsPart
	parts
)

// lose notes that a part cannot be followed. It is found again when it was read anew.
func (w *World) lose(part int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost[part] = true
}

// ledgerError says that the ledger could not be written, which is not Nomad's doing.
type ledgerError struct{ error }

func (e *ledgerError) Unwrap() error { return e.error }
