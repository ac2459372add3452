package engine

import (
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// gpuFilter keeps the pools of an accepted brand and model whose form serves the ask and that isolate as asked.
type gpuFilter struct{ anybody }

var _ FilterPlugin = gpuFilter{}

func (gpuFilter) Name() string { return "gpu_filter" }

func (gpuFilter) Filter(c *Candidate) Code {
	ask := c.Task.Ask
	if !ask.AcceptsVendor(c.Pool.Vendor) {
		return CodeBrand
	}
	if !acceptsModel(c) {
		return CodeModel
	}
	if ask.Whole() {
		return "" // nobody shares a whole card or partition, so that any quality is met
	}
	if c.Pool.Form == accel.Whole || c.Pool.Form == accel.Partition && ask.QoS != accel.Gold {
		return CodeForm
	}
	if strength(tier(c.Pool)) < strength(ask.QoS) {
		return CodeQoS
	}
	return ""
}

// acceptsModel is true for a partition only when the ask means partitions: "A100*" asks for cards, although it matches
// "A100-SXM4-80GB MIG 1g.10gb" too. A share with hardware isolation may use any partition of the model.
func acceptsModel(c *Candidate) bool {
	if c.Pool.Form != accel.Partition {
		return c.AcceptsModel(c.Pool.Model)
	}
	parent, _, _ := strings.Cut(c.Pool.Name, " ")
	if !c.Task.Ask.Whole() {
		return c.AcceptsModel(parent) || c.AcceptsModel(c.Pool.Name)
	}
	return len(c.Task.Ask.Models) > 0 && c.AcceptsModel(c.Pool.Name) && !c.AcceptsModel(parent)
}

// resourceFilter keeps the pools and nodes that have enough free: instances, processor and main memory.
type resourceFilter struct{ anybody }

var _ RoomPlugin = resourceFilter{}

func (resourceFilter) Name() string { return "resource_filter" }

func (resourceFilter) Room(c *Candidate) Code {
	switch {
	case c.FreeUnits < c.Units:
		if c.Task.Ask.Whole() {
			return CodeCount
		}
		return CodeMemory
	case c.FreeCPUMHz < c.Group.CPUMHz*c.Allocations:
		return CodeCPU
	case c.FreeMemoryMiB < c.Group.MemoryMiB*c.Allocations:
		return CodeNodeMemory
	case c.Node.DiskMiB > 0 && c.FreeDiskMiB < c.Group.DiskMiB*c.Allocations:
		return CodeDisk
	}
	return ""
}
