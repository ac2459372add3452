package e2e

import (
	"fmt"
	"os"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

const (
	// cyclesOfTenMinutes is how often a node reads its cards in ten minutes, at the default pace.
	cyclesOfTenMinutes = 120
	quietLong          = 10 * time.Minute // with HETEROFLOW_E2E_LONG
)

// While the load of every card changes from one reading to the next, and tasks come and go, nothing is told to Nomad: the
// node is written not once. The short form lasts as many readings as ten minutes have at the default pace;
// HETEROFLOW_E2E_LONG makes it ten minutes at this one.
func quietUnderLoad(s *suite, b *box) {
	defer b.mend(s.t)
	s.awaitOffered(nil)
	before := s.settledNode()
	began := time.Now()
	calls := map[string]int{}
	for name, tool := range b.tools {
		calls[name] = len(tool.Calls(s.t))
	}
	jobs := 0
	for busy := 1; ; busy = busy%99 + 1 {
		b.load(s.t, busy)
		if busy%30 == 1 {
			jobs++
			s.mustSubmit(probeJob{id: fmt.Sprintf("passes-%d", jobs), kind: "batch", args: []string{"train"}, ask: `vendor = ["mthreads"]`})
		}
		if s.quietEnough(b, calls, began) {
			break
		}
		time.Sleep(100 * time.Millisecond) // several readings a second; each meets another load
	}
	after, err := s.node()
	if err != nil {
		s.t.Fatal(err)
	}
	for name, tool := range b.tools {
		s.t.Logf("%s was called %d times in %s, and %d tasks ran; the node's index was %d and is %d", name, len(tool.Calls(s.t))-calls[name],
			time.Since(began).Round(time.Second), jobs, before.ModifyIndex, after.ModifyIndex)
	}
	if after.ModifyIndex != before.ModifyIndex {
		s.t.Errorf("the node was written while only loads changed (-before +after):\n%s", cmp.Diff(before, after))
	}
	for n := range jobs {
		s.awaitAllocs(fmt.Sprintf("passes-%d", n+1), "complete", 1)
	}
}

// quietEnough tells whether every tool was read often enough. Besides the plugin's readings each is called for the
// statistics, at most once a second.
func (s *suite) quietEnough(b *box, before map[string]int, began time.Time) bool {
	elapsed := time.Since(began)
	if os.Getenv("HETEROFLOW_E2E_LONG") != "" {
		return elapsed >= quietLong
	}
	for name, tool := range b.tools {
		const perReading = 2 // calls: each tool is asked for two of its forms
		if n := (len(tool.Calls(s.t))-before[name])/perReading - int(elapsed.Seconds()) - 1; n < cyclesOfTenMinutes {
			if elapsed > 3*time.Minute {
				s.t.Fatalf("%s was read %d times in %s, want %d", name, n, elapsed, cyclesOfTenMinutes)
			}
			return false
		}
	}
	return true
}

// settledNode is the node once Nomad's client has told everything that it found at first or of what was before.
func (s *suite) settledNode() *api.Node {
	s.t.Helper()
	var node *api.Node
	since := time.Now()
	s.Eventually(2*time.Minute, "the node is settled", func() error {
		now, err := s.node()
		if err != nil {
			return err
		}
		if node == nil || now.ModifyIndex != node.ModifyIndex {
			node, since = now, time.Now()
		}
		if still := time.Since(since); still < 12*time.Second { // the client gathers changes for up to 10 seconds
			return fmt.Errorf("the node was written %s ago", still)
		}
		return nil
	})
	return node
}
