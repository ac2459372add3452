package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

// gangJob is a batch job whose allocations are a gang of members with so many whole cards each.
func gangJob(id string, members, cards int, change ...func(*api.Job)) *api.Job {
	return share(id, members, "", append([]func(*api.Job){func(j *api.Job) {
		j.Type = new("batch")
		task := j.TaskGroups[0].Tasks[0]
		task.Config["accelerator"] = []any{map[string]any{"count": cards}}
		task.Config["gang"] = []any{map[string]any{"framework": "ddp"}}
		j.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "master"}}}}
	}}, change...)...)
}

// wholes are nodes of whole cards.
func wholes(nodes, cards int) []embedded.SimNode {
	return embedded.SimNodes(nodes, cards, accel.NVIDIA, "H100-80GB", 81920, accel.Whole)
}

// Two gangs that each want more than half of the cluster: one runs whole, the other waits whole and starts when the first
// has ended.
func TestGang_OneRunsTheOtherWaitsWhole(t *testing.T) {
	t.Parallel()
	s, _ := start(t, wholes(6, 4))
	s.register(gangJob("first", 5, 4))
	s.runs("first", 5)
	out := s.register(gangJob("second", 5, 4))
	if !strings.Contains(out.Warnings, "the gang needs 5 members with 4 whole cards of one model each; 1 fit now: 4 short") {
		t.Errorf("warnings: %s", out.Warnings)
	}
	if _, code, _ := s.reasonOf("second"); code != "gang_incomplete" || s.usedUnits() != 20 {
		t.Errorf("it waits for %s, and %d cards are held", code, s.usedUnits())
	}
	if _, _, err := s.nomad.Jobs().Deregister("first", false, nil); err != nil {
		t.Fatal(err)
	}
	s.runs("second", 5)
	eventually(t, "the ledger holds the second gang", func() bool { return s.usedUnits() == 20 })
}

// More cards than the cluster has are refused at once.
func TestGang_NeverFits(t *testing.T) {
	t.Parallel()
	s, _ := start(t, wholes(2, 4))
	_, _, err := s.nomad.Jobs().Register(gangJob("big", 3, 4), nil)
	if err == nil || !strings.Contains(err.Error(), "the gang needs 12 cards, but the cluster has 8 that would do") {
		t.Errorf("%v", err)
	}
}

// A gang that lost a node and finds no other gives all of its cards back within ten seconds, waits as a whole, and runs as a
// whole when the node is back.
func TestGang_HoldsNoPart(t *testing.T) {
	t.Parallel()
	s, e := start(t, wholes(3, 4))
	s.register(gangJob("train", 3, 4, func(j *api.Job) {
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(time.Second), DelayFunction: new("constant")}
	}))
	s.runs("train", 3)
	lost := s.running("train")[0].NodeID
	if err := e.SetNodeDown(lost, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gang holds nothing and waits", func() bool {
		state, code, _ := s.reasonOf("train")
		return state == "waiting" && code == "gang_partial" && len(s.running("train")) == 0
	})
	eventually(t, "nothing is held in the ledger", func() bool { return s.usedUnits() == 0 })
	job, _, err := s.nomad.Jobs().Info("train", nil)
	if err != nil || *job.Status != "pending" || *job.TaskGroups[0].Count != 3 {
		t.Errorf("Nomad's API shows %v with %v, %v", *job.Status, *job.TaskGroups[0].Count, err)
	}
	if err := e.SetNodeDown(lost, false); err != nil {
		t.Fatal(err)
	}
	s.runs("train", 3)
	eventually(t, "the ledger holds the gang", func() bool { return s.usedUnits() == 12 })
}

// A replacement is found when there is a node for it, and those that run stay.
func TestGang_MemberIsReplaced(t *testing.T) {
	t.Parallel()
	s, e := start(t, wholes(4, 4))
	s.register(gangJob("train", 3, 4, func(j *api.Job) {
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(time.Second), DelayFunction: new("constant")}
	}))
	s.runs("train", 3)
	before := s.running("train")
	if err := e.SetNodeDown(before[0].NodeID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three members run, none on the lost node", func() bool {
		now := s.running("train")
		return len(now) == 3 && !slices.ContainsFunc(now, func(a *api.AllocationListStub) bool { return a.NodeID == before[0].NodeID })
	})
	for _, old := range before[1:] {
		if !slices.ContainsFunc(s.running("train"), func(a *api.AllocationListStub) bool { return a.ID == old.ID }) {
			t.Errorf("allocation %s was ended with the lost one", old.ID)
		}
	}
}

// paired are nodes whose cards are linked in pairs: 0 and 2, 1 and 3.
func paired(nodes int) []embedded.SimNode {
	out := wholes(nodes, 4)
	for i := range out {
		out[i].Links = map[[2]int]accel.Link{{0, 2}: {Kind: accel.LinkNVLink, Count: new(12)}, {1, 3}: {Kind: accel.LinkNVLink, Count: new(12)}}
	}
	return out
}

// cardsOf are the places of the cards of a job's allocations on their nodes, sorted.
func (s *service) cardsOf(job string) string {
	s.t.Helper()
	var out []string
	for _, stub := range s.running(job) {
		a, _, err := s.nomad.Allocations().Info(stub.ID, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, task := range a.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				for _, id := range d.DeviceIDs {
					out = append(out, id[strings.LastIndex(id, "-")+1:])
				}
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Nomad takes the cards that the links say, also when jobs come faster than their allocations.
func TestLinks_NomadTakesTheChosenCards(t *testing.T) {
	t.Parallel()
	s, _ := start(t, paired(1))
	two := func(id string) *api.Job {
		return share(id, 1, "", func(j *api.Job) { j.TaskGroups[0].Tasks[0].Config["accelerator"] = []any{map[string]any{"count": 2}} })
	}
	s.register(two("a"))
	s.register(two("b"))
	s.runs("a", 1)
	s.runs("b", 1)
	if got := s.cardsOf("a") + ", " + s.cardsOf("b"); got != "0 2, 1 3" {
		t.Errorf("cards %s, want a pair for each", got)
	}
	if _, _, err := s.nomad.Jobs().Deregister("b", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b has ended", func() bool { return s.usedUnits() == 2 })
	s.register(share("single", 1, ""))
	s.runs("single", 1)
	if _, _, err := s.nomad.Jobs().Deregister("a", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a has ended", func() bool { return s.usedUnits() == 1 })
	s.register(share("second", 1, ""))
	s.runs("second", 1)
	if got := s.cardsOf("single") + s.cardsOf("second"); got != "13" && got != "31" {
		t.Errorf("singles have cards %s, want both of the pair that the first broke", got)
	}
}

// grantOf is the grant of a job's task as Nomad has it.
func grantOf(t *testing.T, e *embedded.Engine, job string) string {
	t.Helper()
	client, err := api.NewClient(&api.Config{Address: e.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	j, _, err := client.Jobs().Info(job, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, _ := j.TaskGroups[0].Tasks[0].Config["grant"].(string)
	return token
}

// The members' drivers meet at the service by their grants, and each is told its rank.
func TestGang_MembersMeet(t *testing.T) {
	t.Parallel()
	s, e := start(t, wholes(2, 4))
	s.register(gangJob("train", 2, 4))
	s.runs("train", 2)
	token := grantOf(t, e, "train")
	type told struct {
		State   string
		Rank    int
		Env     map[string]string
		Present int
	}
	meet := func(a *api.AllocationListStub, wait string) (int, told) {
		var out told
		status, _, body := s.do(http.MethodPost, "/api/v1/gangs/meet", s.key, map[string]any{
			"grant": token, "alloc_id": a.ID, "visit": "v-" + a.ID, "index": 0, "node_id": a.NodeID, "address": "10.0.0." + a.ID[:1], "port": 20000,
			"vendor": "nvidia", "cards": []any{map[string]any{"uuid": "a", "index": 0}}, "wait": wait,
		})
		if err := json.Unmarshal(body, &out); err != nil {
			t.Errorf("%d %s", status, body)
		}
		return status, out
	}
	members := s.running("train")
	if status, alone := meet(members[0], "1ms"); status != http.StatusOK || alone.State != "waiting" || alone.Present != 1 {
		t.Errorf("alone: %d %+v", status, alone)
	}
	answers := make(chan told, 1)
	go func() {
		_, out := meet(members[0], "30s")
		answers <- out
	}()
	_, second := meet(members[1], "30s")
	first := <-answers
	if first.State != "started" || second.State != "started" || first.Rank == second.Rank {
		t.Fatalf("%+v %+v", first, second)
	}
	for _, one := range []told{first, second} {
		if one.Env["WORLD_SIZE"] != "2" || one.Env["RANK"] != fmt.Sprint(one.Rank) || one.Env["MASTER_ADDR"] != first.Env["MASTER_ADDR"] || one.Env["MASTER_PORT"] != "20000" {
			t.Errorf("%+v", one)
		}
	}
	status, _, body := s.do(http.MethodPost, "/api/v1/gangs/meet", s.key, map[string]any{"grant": "hfg1.x", "alloc_id": "a", "visit": "v", "index": 0, "cards": []any{}})
	if status != http.StatusForbidden || !strings.Contains(string(body), "no_member") {
		t.Errorf("without a grant: %d %s", status, body)
	}
}
