package watch

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Fate is what became of an allocation.
type Fate int

// The fates.
const (
	FateUnknown Fate = iota // Nomad did not tell of it yet, or any more
	FateRuns                // Nomad wants it to run, and it has not ended
	FateDone                // all of its tasks have ended with success
	FateLost                // it failed, its node was lost, or Nomad stops it
)

func (a *Alloc) fate() Fate {
	switch {
	case !a.Stays():
		return FateLost
	case a.Live():
		return FateRuns
	case a.Client == api.AllocClientStatusComplete:
		return FateDone
	}
	return FateLost
}

// Fate is what became of an allocation.
func (w *World) Fate(allocID string) Fate {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if a := w.allocs[allocID]; a != nil {
		return a.fate()
	}
	return FateUnknown
}

// Crew is how many allocations of each group of a job Nomad wants to run and have not ended.
func (w *World) Crew(job JobKey) map[string]int {
	w.mu.RLock()
	defer w.mu.RUnlock()
	out := map[string]int{}
	for _, a := range w.jobs[job] {
		if a.fate() == FateRuns {
			out[a.Group]++
		}
	}
	return out
}

// decides is how long Nomad takes at most to decide what becomes of an allocation that failed.
const decides = 5 * time.Second

// awaited are the allocations of a job that failed and that Nomad is going to replace, or may be: it has not decided yet.
func (w *World) awaited(job JobKey, now time.Time) (all []*Alloc, undecided bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for id := range w.failed[job] {
		a := w.allocs[id]
		switch {
		case a == nil || !a.failed():
		case a.Followup != "":
			all = append(all, a)
		case now.Sub(a.heard) < decides:
			all, undecided = append(all, a), true
		}
	}
	return all, undecided
}

// failed reports whether an allocation, which may be nil, failed in a place that a replacement can take.
func (a *Alloc) failed() bool {
	return a != nil && a.Client == api.AllocClientStatusFailed && a.Stays() && a.Next == "" && len(a.Devices) > 0
}

// noteFailed keeps the book of failed allocations. It is called with the lock held.
func (w *World) noteFailed(a *Alloc) {
	if a.failed() {
		if w.failed[a.Job] == nil {
			w.failed[a.Job] = map[string]bool{}
		}
		w.failed[a.Job][a.ID] = true
		return
	}
	if at := w.failed[a.Job]; at != nil {
		delete(at, a.ID)
		if len(at) == 0 {
			delete(w.failed, a.Job)
		}
	}
}
