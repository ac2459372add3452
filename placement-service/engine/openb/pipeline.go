package openb

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// unitMiB is the slice in which a thousandth of a card is given in the whole pipeline.
const unitMiB = 64

// pipeline places by the whole engine: nodes of shared cards, requests as jobs make them. Pods that ask for no card do not
// come to the engine; they are placed as the scorer would.
type pipeline struct {
	engines [potential.Levels + 1]*engine.Engine
	regime  potential.Regime
	nodes   []engine.Node // by rank
	cluster *engine.Cluster
	index   *potential.Index // of the same
	policy  *potential.Policy
}

// pipeline is the cluster behind an engine that knows the demand of the list.
func (c *Cluster) pipeline(ranks []int, plugins []engine.PluginSetting) *pipeline {
	on := &pipeline{nodes: make([]engine.Node, len(c.Nodes)), policy: potential.NewPolicy()}
	on.policy.Learn(c.Mix(), c.Supply())
	on.index = potential.NewIndex(on.policy)
	for i, s := range c.Nodes {
		on.nodes[ranks[i]] = nodeOf(ranks[i], &s)
		on.index.Set(ranks[i], s)
	}
	on.cluster = engine.NewCluster(on.nodes...)
	var asked []engine.Asked
	for i := range c.Pods {
		if p := &c.Pods[i].Shape; p.Cards > 0 {
			asked = append(asked, engine.AsksOf(requestOf(p))...)
		} else {
			asked = append(asked, engine.Asked{CPUMHz: int(p.CPU), MemoryMiB: int(p.Memory), Weight: 1})
		}
	}
	learnt := engine.Learn(engine.Demand{}.Add(asked).On(on.cluster.Snapshot()))
	for level := range on.engines {
		on.engines[level] = engine.New(engine.Config{Plugins: plugins, Learnt: learnt, Level: level})
	}
	return on
}

// nodeOf is a node in the words of the engine, each card shared. Ids are in the order of ranks.
func nodeOf(rank int, s *potential.State) engine.Node {
	id := fmt.Sprintf("%06d", rank)
	n := engine.Node{
		ID: id, Name: id, Datacenter: "dc1", Ready: true, CPUMHz: int(s.CPU), MemoryMiB: int(s.Memory), Drivers: map[string]bool{"heteroflow": true},
	}
	for i, c := range s.Cards {
		if c == 0 {
			break
		}
		name := fmt.Sprintf("%s-%d", modelOf(c.Model()), i)
		n.Pools = append(n.Pools, engine.Pool{
			Group: "nvidia/vgpu/" + name, Vendor: accel.NVIDIA, Type: "vgpu", Name: name, Model: modelOf(c.Model()), Form: accel.Shared,
			UnitMiB: unitMiB, Total: potential.Whole, Cards: []engine.Card{{UUID: fmt.Sprintf("%s-%d", id, i), Healthy: true, Units: potential.Whole}},
		})
	}
	return n
}

func modelOf(number int) string { return fmt.Sprintf("M%02d", number) }

// requestOf is the pod as a job.
func requestOf(p *potential.Shape) engine.Request {
	ask := accel.Ask{Count: int(p.Cards)}
	if p.Milli < potential.Whole {
		ask.MemoryMiB = uint64(p.Milli) * unitMiB
	}
	for number := range potential.MaxModels {
		if p.Models>>number&1 != 0 {
			ask.Models = append(ask.Models, modelOf(number))
		}
	}
	return engine.Request{JobID: "pod", Namespace: "default", Groups: []engine.GroupAsk{{
		Name: "g", Count: 1, CPUMHz: int(p.CPU), MemoryMiB: int(p.Memory), Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &ask}},
	}}}
}

func (on *pipeline) place(p *potential.Shape) (end func()) {
	at, claims, ok := on.choose(p)
	if !ok {
		return nil
	}
	return on.take(at, p, claims)
}

// take books a pod and gives what ends it.
func (on *pipeline) take(at int, p *potential.Shape, claims []engine.Claim) (end func()) {
	on.book(at, p, claims, 1)
	on.regime.Placed()
	on.policy.SetLevel(on.regime.Level())
	return func() {
		on.book(at, p, claims, -1)
		on.regime.Left()
		on.policy.SetLevel(on.regime.Level())
	}
}

// engine is the one for how fast pods leave now.
func (on *pipeline) engine() *engine.Engine { return on.engines[on.regime.Level()] }

// choose decides without booking.
func (on *pipeline) choose(p *potential.Shape) (node int, claims []engine.Claim, ok bool) {
	if p.Cards == 0 {
		node, _, ok = on.index.Choose(p)
		return node, nil, ok
	}
	d := on.engine().DecideOn(on.cluster, requestOf(p))
	if !d.Placed {
		return 0, nil, false
	}
	chosen := d.Groups[0].Placements[0]
	return numberOf(chosen.NodeID), chosen.Tasks[0].Claims, true
}

// numberOf is the rank of a node, or the number of a model.
func numberOf(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "M"))
	if err != nil {
		panic(err)
	}
	return n
}

// book takes what a pod was given, or gives it back when times is -1.
func (on *pipeline) book(node int, p *potential.Shape, claims []engine.Claim, times int) {
	n := &on.nodes[node]
	n.Pools = slices.Clone(n.Pools) // the cluster has the old ones
	n.UsedCPUMHz += times * int(p.CPU)
	n.UsedMemoryMiB += times * int(p.Memory)
	var cards []potential.Card
	for i := range n.Pools {
		pool := &n.Pools[i]
		for _, c := range claims {
			if c.Group == pool.Group {
				pool.Used += times * c.Units
				pool.Cards = slices.Clone(pool.Cards)
				pool.Cards[0].UsedUnits = pool.Used
			}
		}
		cards = append(cards, potential.MakeCard(numberOf(pool.Model), pool.Free()))
	}
	on.cluster.Set(*n)
	on.index.Set(node, potential.MakeState(n.CPUMHz-n.UsedCPUMHz, n.MemoryMiB-n.UsedMemoryMiB, cards))
}
