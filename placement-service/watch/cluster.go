package watch

import (
	"maps"
	"reflect"
	"sync"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// followed is the cluster as the engine likes it best: changed node by node, and not copied for each decision.
type followed struct {
	mu      sync.Mutex // of decisions, held before World's
	cluster *engine.Cluster
	taken   Taken           // that the cluster has
	stale   map[string]bool // nodes that changed since; under World's lock
}

func newFollowed() followed {
	return followed{cluster: engine.NewCluster(), stale: map[string]bool{}}
}

// Decide is what the engine decides on Snapshot(taken).
func (w *World) Decide(e *engine.Engine, taken Taken, r engine.Request) engine.Decision {
	w.follow.mu.Lock()
	defer w.follow.mu.Unlock()
	for _, id := range w.outOfDate(taken) {
		if n, there := w.nodeFor(id, taken); there {
			w.follow.cluster.Set(n)
		} else {
			w.follow.cluster.Remove(id)
		}
	}
	return e.DecideOn(w.follow.cluster, r)
}

func (w *World) nodeFor(id string, taken Taken) (n engine.Node, there bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.nodes[id] == nil {
		return n, false
	}
	return w.engineNode(id, taken), true
}

// outOfDate are the nodes that are others than the followed cluster has, which has them from here on.
func (w *World) outOfDate(taken Taken) []string {
	w.mu.Lock()
	stale := w.follow.stale
	w.follow.stale = map[string]bool{}
	w.mu.Unlock()
	had := w.follow.taken
	for id, units := range taken {
		if !sameUnits(units, had[id]) {
			stale[id] = true
		}
	}
	for id := range had {
		if taken[id] == nil {
			stale[id] = true
		}
	}
	if (had == nil) != (taken == nil) { // without a ledger the allocations say what is taken, of whichever node
		w.mu.RLock()
		for id := range w.nodes {
			stale[id] = true
		}
		w.mu.RUnlock()
	}
	w.follow.taken = taken
	out := make([]string, 0, len(stale))
	for id := range stale {
		out = append(out, id)
	}
	return out
}

// sameUnits spares a look into maps that are one: a ledger shares those of nodes on which nothing changed.
func sameUnits(a, b map[string]int) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b)
}
