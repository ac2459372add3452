package rest

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// ListGPUs says what is free on each card.
func (s *server) ListGPUs(ctx context.Context, r api.ListGPUsRequestObject) (api.ListGPUsResponseObject, error) {
	taken, err := s.Ledger.Read(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := path.Match(val(r.Params.Model), ""); err != nil {
		return nil, httpx.NewProblem(400, "bad_parameter", "model: write a pattern, with * for any text")
	}
	tenant := whoOf(ctx).Tenant
	out := api.ListGPUs200JSONResponse{AsOf: s.World.AsOf(), Stale: ref(s.World.Stale(s.Clock.Now())), Items: []api.GPU{}}
	for _, card := range s.World.Cards() {
		if !wanted(card, r.Params) {
			continue
		}
		gpu := gpuOf(card, taken)
		if val(r.Params.Free) && (!gpu.Healthy || !card.NodeReady || gpu.Units.Free == 0) {
			continue
		}
		if gpu.Jobs, err = s.usesOf(ctx, card, tenant); err != nil {
			return nil, err
		}
		out.Items = append(out.Items, gpu)
	}
	order := accel.Vendors()
	slices.SortStableFunc(out.Items, func(a, b api.GPU) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, accel.Vendor(a.Vendor)), slices.Index(order, accel.Vendor(b.Vendor))),
			cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return out, nil
}

func wanted(c watch.CardView, p api.ListGPUsParams) bool {
	if v := val(p.Vendor); v != "" && !strings.EqualFold(v, string(c.In.Vendor)) {
		return false
	}
	if n := val(p.Node); n != "" && n != c.NodeID && n != c.NodeName {
		return false
	}
	return accel.Ask{Models: models(val(p.Model))}.AcceptsModel(c.In.Model)
}

func models(pattern string) []string {
	if pattern == "" {
		return nil
	}
	return []string{pattern}
}

// gpuOf is a card for people. A shared card counts what is reserved too; of whole cards a reservation does not say
// which one it is.
func gpuOf(c watch.CardView, taken watch.Taken) api.GPU {
	used := c.UsedUnits
	if c.In.Form != accel.Whole && len(c.In.Cards) == 1 {
		used = max(used, taken[c.NodeID][c.Pool])
	}
	out := api.GPU{
		UUID: c.UUID, Parent: ref(c.Parent), Vendor: string(c.In.Vendor), Model: c.In.Model, Index: c.Index, NodeID: c.NodeID, NodeName: c.NodeName,
		Group: c.Pool, Form: api.GPUForm(c.In.Form), Switchable: c.Auto, Healthy: c.Healthy, HealthReason: ref(c.HealthReason),
		Units: unitsOf(c.Units, used, c.In.UnitMiB), Modes: append([]string{}, c.Modes...), PCIAddress: ref(c.PCI),
		NUMANode: c.NUMANode, DriverVersion: ref(c.Driver), Jobs: []api.CardUse{},
	}
	switch {
	case c.In.UnitMiB != 0:
		out.Memory = memoryOf(uint64(c.Units)*c.In.UnitMiB, uint64(used)*c.In.UnitMiB)
	case c.MemoryMiB != nil && used == 0:
		out.Memory = memoryOf(*c.MemoryMiB, 0)
	case c.MemoryMiB != nil:
		out.Memory = memoryOf(*c.MemoryMiB, *c.MemoryMiB)
	}
	if !c.Healthy { // nothing of it can be given; what it has, and what jobs hold of it, stays known
		out.Units.Free = 0
		if out.Memory != nil {
			out.Memory.FreeMiB = 0
		}
	}
	return out
}

func memoryOf(total, used uint64) *api.Memory {
	return &api.Memory{TotalMiB: int64(total), UsedMiB: int64(used), FreeMiB: int64(total - min(total, used))}
}

func unitsOf(total, used int, unitMiB uint64) api.Units {
	return api.Units{Total: total, Used: used, Free: max(0, total-used), UnitMiB: ref(int64(unitMiB))}
}

// usesOf are the jobs on a card. A tenant sees that others are there, not who they are.
func (s *server) usesOf(ctx context.Context, c watch.CardView, tenant string) ([]api.CardUse, error) {
	out := []api.CardUse{}
	for _, u := range c.Uses {
		owner, err := s.tenantOf(ctx, u.Alloc.Job)
		if err != nil {
			return nil, err
		}
		use := api.CardUse{
			Namespace: u.Alloc.Job.Namespace, JobID: u.Alloc.Job.ID, Tenant: ref(owner), TaskGroup: u.Alloc.Group,
			Task: u.Task, AllocID: u.Alloc.ID, Units: u.Units, MemoryMiB: ref(int64(u.Units) * int64(c.In.UnitMiB)),
		}
		if tenant != "" && owner != tenant {
			use.Namespace, use.JobID, use.Tenant, use.TaskGroup, use.Task, use.AllocID = "", "", nil, "", "", ""
		}
		out = append(out, use)
	}
	slices.SortFunc(out, func(a, b api.CardUse) int {
		return cmp.Or(cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.AllocID, b.AllocID), cmp.Compare(a.Task, b.Task))
	})
	return out, nil
}

// ListNodes says what is free on each node.
func (s *server) ListNodes(ctx context.Context, _ api.ListNodesRequestObject) (api.ListNodesResponseObject, error) {
	taken, err := s.Ledger.Read(ctx)
	if err != nil {
		return nil, err
	}
	out := api.ListNodes200JSONResponse{AsOf: s.World.AsOf(), Stale: ref(s.World.Stale(s.Clock.Now())), Items: []api.Node{}}
	intents, err := s.intentsOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range s.World.Snapshot(taken).Nodes {
		node := nodeOf(n)
		node.Intents = intents[n.ID]
		out.Items = append(out.Items, node)
	}
	slices.SortFunc(out.Items, func(a, b api.Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return out, nil
}

// intentsOf says of the nodes with cards whose form may be switched how they do what is wanted of them.
func (s *server) intentsOf(ctx context.Context) (map[string]*api.NodeIntents, error) {
	failed, err := s.Submit.FailedSwitches(ctx)
	if err != nil {
		return nil, err
	}
	cards := map[string][]string{}
	for _, c := range s.World.Cards() {
		if c.Auto {
			cards[c.NodeID] = append(cards[c.NodeID], c.UUID)
		}
	}
	out := map[string]*api.NodeIntents{}
	for id, own := range cards {
		fetched, why := s.Submit.Fetches(own)
		out[id] = &api.NodeIntents{Fetched: fetched, Reason: ref(why), Failed: []api.FailedSwitch{}}
	}
	for _, f := range failed {
		if in := out[f.NodeID]; in != nil {
			in.Failed = append(in.Failed, api.FailedSwitch{CardUUID: f.CardUUID, Form: string(f.Form), Reason: f.Reason, FailedAt: f.At, RetryAt: f.RetryAt})
		}
	}
	return out, nil
}

func nodeOf(n engine.Node) api.Node {
	out := api.Node{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, NodePool: n.Pool, Class: ref(n.Class), Ready: n.Ready,
		DriverReady: n.Drivers["heteroflow"], CPUMhz: api.CPU{Total: n.CPUMHz, Used: n.UsedCPUMHz},
		Memory: *memoryOf(uint64(max(0, n.MemoryMiB)), uint64(max(0, n.UsedMemoryMiB))), Pools: []api.DevicePool{},
	}
	for _, p := range n.Pools {
		out.Pools = append(out.Pools, api.DevicePool{
			Group: p.Group, Vendor: string(p.Vendor), Model: p.Model, Form: string(p.Form), Units: unitsOf(p.Total, p.Used, p.UnitMiB),
		})
	}
	return out
}
