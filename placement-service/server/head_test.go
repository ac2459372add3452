package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/placement-service/server"
)

func lasting(runtime string) func(*api.Job) {
	return func(j *api.Job) { j.Meta = map[string]string{"heteroflow_runtime": runtime} }
}

func impatient(c *server.Config) { c.Patience = time.Millisecond }

// waitsWith waits until a job waits with a code, for its reason.
func (s *service) waitsWith(id, want string) (reason string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%s waits with %s", id, want), func() bool {
		var state, code string
		state, code, reason = s.reasonOf(id)
		return state == "waiting" && code == want
	})
	return reason
}

// TestHead_ShortJobsRunInFrontOfTheOneThatWaits: the end of what runs is known, so that room is kept from then on.
func TestHead_ShortJobsRunInFrontOfTheOneThatWaits(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("runs", 1, "50GiB", lasting("1h")))
	s.runs("runs", 1)
	s.register(share("big", 1, "60GiB"))
	eventually(t, "room is kept for the big one", func() bool {
		_, code, reason := s.reasonOf("big")
		return code == "memory" && strings.Contains(reason, "at the latest, for which room is kept on sim-0001")
	})
	s.register(share("endless", 1, "25GiB"))
	if reason := s.waitsWith("endless", "reserved"); !strings.Contains(reason, "would delay job default/big, which waits in front of it since") || !strings.Contains(reason, "heteroflow_runtime") {
		t.Errorf("reason is %q", reason)
	}
	s.register(share("long", 1, "25GiB", lasting("2h")))
	s.waitsWith("long", "reserved")
	s.register(share("beside", 1, "20GiB")) // leaves as much as the big one needs
	s.runs("beside", 1)
	s.register(share("short", 1, "5GiB", lasting("30m")))
	s.runs("short", 1)
	s.register(share("first", 1, "5GiB", ofPriority(90))) // is before the big one
	s.runs("first", 1)
	if _, _, err := s.nomad.Jobs().Deregister("big", false, nil); err != nil {
		t.Fatal(err)
	}
	s.waitsWith("endless", "memory") // nothing is kept any more
}

// TestHead_WhatComesFreeIsLeftToIt: a stream of small jobs does not keep a big one out for ever.
func TestHead_WhatComesFreeIsLeftToIt(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), impatient)
	batch := func(j *api.Job) { j.Type = new("batch") }
	for i := range 3 { // each of them is in the way
		s.register(share(fmt.Sprint("small-", i), 1, "26GiB", batch))
		s.runs(fmt.Sprint("small-", i), 1)
	}
	s.register(share("big", 1, "60GiB"))
	eventually(t, "what comes free is kept for it", func() bool {
		_, _, reason := s.reasonOf("big")
		return strings.Contains(reason, "room that comes free on sim-0001 is kept for it")
	})
	for i := range 3 {
		if _, _, err := s.nomad.Jobs().Deregister(fmt.Sprint("small-", i), false, nil); err != nil {
			t.Fatal(err)
		}
		if id := fmt.Sprint("later-", i); i < 2 { // with the third the big one has its room
			eventually(t, "its room is free", func() bool { return s.usedUnits() == 52-26*i })
			s.register(share(id, 1, "26GiB", batch))
			s.waitsWith(id, "reserved")
		}
	}
	s.runs("big", 1)
}
