package submit

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// ended is an intent of a card that ended some minutes before noon.
func ended(card, state string, ago int) store.Intent {
	return store.Intent{NodeID: "n", CardUUID: card, Form: "shared", State: state, Reason: "no", UpdatedAt: noon.Add(-time.Duration(ago) * time.Minute)}
}

func TestFailedOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ended []store.Intent // the latest first
		pause map[string]time.Duration
	}{
		"none":                       {nil, nil},
		"one":                        {[]store.Intent{ended("a", store.IntentFailed, 1)}, map[string]time.Duration{"a": time.Minute}},
		"three in a row":             {[]store.Intent{ended("a", store.IntentFailed, 1), ended("a", store.IntentFailed, 3), ended("a", store.IntentFailed, 9)}, map[string]time.Duration{"a": 4 * time.Minute}},
		"switched since":             {[]store.Intent{ended("a", store.IntentDone, 1), ended("a", store.IntentFailed, 2), ended("a", store.IntentFailed, 3)}, nil},
		"switched before":            {[]store.Intent{ended("a", store.IntentFailed, 1), ended("a", store.IntentDone, 2), ended("a", store.IntentFailed, 3)}, map[string]time.Duration{"a": time.Minute}},
		"each card has its failures": {[]store.Intent{ended("a", store.IntentFailed, 1), ended("b", store.IntentDone, 2), ended("c", store.IntentFailed, 3), ended("a", store.IntentFailed, 4)}, map[string]time.Duration{"a": 2 * time.Minute, "c": time.Minute}},
	} {
		got := map[string]time.Duration{}
		for _, f := range failedOf(c.ended) {
			got[f.CardUUID] = f.RetryAt.Sub(f.At)
		}
		if c.pause == nil {
			c.pause = map[string]time.Duration{}
		}
		if diff := cmp.Diff(c.pause, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Whatever ended when: a card is told once, with its latest failure, and is left alone for one to ten minutes.
func TestFailedOf_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var list []store.Intent
		last := map[string]store.Intent{}
		for i := range rapid.IntRange(0, 30).Draw(t, "n") {
			in := ended(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "card"), rapid.SampledFrom([]string{store.IntentDone, store.IntentFailed}).Draw(t, "state"), i)
			if list = append(list, in); last[in.CardUUID].CardUUID == "" {
				last[in.CardUUID] = in
			}
		}
		seen := map[string]bool{}
		for _, f := range failedOf(list) {
			pause := f.RetryAt.Sub(f.At)
			if seen[f.CardUUID] || !f.At.Equal(last[f.CardUUID].UpdatedAt) || pause < failedPause || pause > failedPauseMost {
				t.Fatalf("%+v of %+v", f, list)
			}
			seen[f.CardUUID] = true
		}
		for card, in := range last {
			if seen[card] != (in.State == store.IntentFailed) {
				t.Fatalf("card %s, whose last is %s, is told: %v", card, in.State, seen[card])
			}
		}
	})
}

// What is fixed in one snapshot must not be in the world that it was made of.
func TestFixCards_LeavesTheSharedPartsAlone(t *testing.T) {
	t.Parallel()
	shared := oneCard(accel.Whole)
	s := engine.Snapshot{Nodes: append([]engine.Node{}, shared.Nodes...)}
	fixCards(s, []FailedSwitch{{NodeID: "n", CardUUID: "GPU-a"}, {NodeID: "other", CardUUID: "GPU-a"}})
	if !s.Nodes[0].Pools[0].Cards[0].Fixed || shared.Nodes[0].Pools[0].Cards[0].Fixed {
		t.Errorf("in the snapshot %v, in the world %v", s.Nodes[0].Pools[0].Cards[0].Fixed, shared.Nodes[0].Pools[0].Cards[0].Fixed)
	}
}
