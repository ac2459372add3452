package scheduler

import (
	"math"
	"math/rand/v2"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/constraint"
)

// hasDevices is the filter before the choice: whether the healthy instances of all groups that match a block could
// serve it on an empty node.
func hasDevices(n *api.Node, blocks []*api.RequestedDevice) bool {
	for _, d := range blocks {
		healthy := uint64(0)
		for _, g := range n.NodeResources.Devices {
			if matches(g, d) {
				for _, i := range g.Instances {
					if i.Healthy {
						healthy++
					}
				}
			}
			if healthy >= value(d.Count) {
				break
			}
		}
		if healthy < value(d.Count) || value(d.Count) == 0 {
			return false
		}
	}
	return true
}

func matches(g *api.NodeDeviceResource, d *api.RequestedDevice) bool {
	if !constraint.DeviceNamed(g, d.Name) {
		return false
	}
	ok, _ := constraint.Group(g, d.Constraints)
	return ok
}

// deviceUse hands out device instances of one node to one allocation.
type deviceUse struct {
	node    *api.Node
	taken   map[string]map[string]bool // by others: group → instance
	own     map[string]map[string]bool
	rand    *rand.Rand
	weighed bool
	sum     float64 // of matched affinity weights
	total   float64 // of absolute affinity weights
}

// assign gives one block its instances, all from one group: the one with the best affinity among those that have
// enough, by chance among equals. It returns nil when there is none.
func (u *deviceUse) assign(d *api.RequestedDevice) *api.AllocatedDeviceResource {
	want := int(min(value(d.Count), math.MaxInt32))
	if want == 0 {
		return nil
	}
	var best *api.NodeDeviceResource
	var ids []string
	score, equal := 0.0, 0
	for _, g := range u.node.NodeResources.Devices {
		if len(g.Instances) < want || !matches(g, d) {
			continue
		}
		free := u.free(g, d, want)
		if len(free) < want {
			continue
		}
		s := constraint.GroupAffinity(g, d.Affinities)
		switch {
		case best == nil || s > score:
			best, ids, score, equal = g, free, s, 1
		case s == score:
			if equal++; u.rand.IntN(equal) == 0 {
				best, ids = g, free
			}
		}
	}
	if best == nil {
		return nil
	}
	u.weigh(d, score)
	id := best.ID()
	if u.own[id] == nil {
		u.own[id] = map[string]bool{}
	}
	for _, instance := range ids {
		u.own[id][instance] = true
	}
	return &api.AllocatedDeviceResource{Vendor: best.Vendor, Type: best.Type, Name: best.Name, DeviceIDs: ids}
}

// free lists healthy instances nobody has that the block's constraints allow, want at most.
func (u *deviceUse) free(g *api.NodeDeviceResource, d *api.RequestedDevice, want int) []string {
	id := g.ID()
	taken, own := u.taken[id], u.own[id]
	named := false
	for _, k := range d.Constraints {
		named = named || k.LTarget == "${device.ids}"
	}
	ids := make([]string, 0, want)
	for _, i := range g.Instances {
		if !i.Healthy || taken[i.ID] || own[i.ID] {
			continue
		}
		if named && len(constraint.Instances([]string{i.ID}, d.Constraints)) == 0 {
			continue
		}
		if ids = append(ids, i.ID); len(ids) == want {
			break
		}
	}
	return ids
}

func (u *deviceUse) weigh(d *api.RequestedDevice, score float64) {
	for _, a := range d.Affinities {
		u.weighed = true
		weight := math.Abs(float64(value(a.Weight)))
		u.total += weight
		u.sum += score * weight
	}
}

// score is the part of the affinity weights that was met, −1 to 1.
func (u *deviceUse) score() float64 {
	if u.total == 0 {
		return 0
	}
	return u.sum / u.total
}
