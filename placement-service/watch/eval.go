package watch

import (
	"maps"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// evalBook knows which jobs still have evaluations to come: as long as one is open, what a job reserved and does
// not hold yet may still become an allocation.
type evalBook struct {
	mu       sync.Mutex
	openOf   map[JobKey]map[string]bool
	expected map[JobKey]string // evaluation of a registration, not seen to its end
	done     map[string]bool   // finished evaluations, the latest of them
	order    []string
}

const keepDone = 4096

func newEvalBook() *evalBook {
	return &evalBook{openOf: map[JobKey]map[string]bool{}, expected: map[JobKey]string{}, done: map[string]bool{}}
}

// expect notes the evaluation of a registration. Its end may have been seen already.
func (b *evalBook) expect(job JobKey, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id == "" || b.done[id] {
		delete(b.expected, job)
		return
	}
	b.expected[job] = id
}

// note takes one evaluation in and reports whether the job's claims may have lost their reason to wait.
func (b *evalBook) note(e *api.Evaluation) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	job := JobKey{e.Namespace, e.JobID}
	switch e.Status {
	case "pending", "blocked":
		if b.openOf[job] == nil {
			b.openOf[job] = map[string]bool{}
		}
		b.openOf[job][e.ID] = true
		return false
	}
	b.finish(e.ID)
	delete(b.openOf[job], e.ID)
	if len(b.openOf[job]) == 0 {
		delete(b.openOf, job)
	}
	if b.expected[job] == e.ID {
		delete(b.expected, job)
	}
	return len(b.openOf[job]) == 0 && b.expected[job] == ""
}

func (b *evalBook) finish(id string) {
	if b.done[id] {
		return
	}
	b.done[id] = true
	b.order = append(b.order, id)
	if len(b.order) > keepDone {
		delete(b.done, b.order[0])
		b.order = b.order[1:]
	}
}

// awaited is what is expected now, for a reset by a list that is taken after this call.
func (b *evalBook) awaited() map[JobKey]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.expected)
}

// reset replaces what is open by a list and returns the jobs with a blocked evaluation. An evaluation that was
// awaited before the list was taken and is not open was finished while nobody listened.
func (b *evalBook) reset(open []*api.Evaluation, awaited map[JobKey]string) []JobKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.openOf)
	var blocked []JobKey
	for _, e := range open {
		job := JobKey{e.Namespace, e.JobID}
		if b.openOf[job] == nil {
			b.openOf[job] = map[string]bool{}
		}
		b.openOf[job][e.ID] = true
		if e.Status == "blocked" {
			blocked = append(blocked, job)
		}
	}
	for job, id := range awaited {
		if b.expected[job] == id && !b.openOf[job][id] {
			b.finish(id)
			delete(b.expected, job)
		}
	}
	return blocked
}

// open reports whether the job still has an evaluation to come.
func (b *evalBook) open(job JobKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.openOf[job]) > 0 || b.expected[job] != ""
}

// ended reports whether the evaluation was seen to its end. Only the latest ones are remembered.
func (b *evalBook) ended(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[id]
}
