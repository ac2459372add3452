package makertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Node is a machine with a card of every brand here and all that their backends need: fake tools, libraries, the kernel's files.
type Node struct {
	Root  string
	fakes []share.Tool
	makes []interface{ Things() []string }
}

// NewNode makes the machine below root.
func NewNode(t TB, root string) *Node {
	n := &Node{Root: root}
	npu, svi, smlu, sgpu := NewNPUSMI(), NewBRSMI(t, root), NewSMLUs(), NewSGPUs()
	n.fakes = []share.Tool{npu, svi, smlu, sgpu, NewHySMI(), NewXPUToolkit("5.0.21.26")}
	n.makes = []interface{ Things() []string }{npu, svi, smlu, sgpu}
	for path, body := range map[string]string{
		"/usr/local/hami-vnpu-core/libvnpu.so":           "library",
		"/usr/local/vgpu/libamvgpu.so":                   "library",
		"/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 1216\nsimd_per_cu 4\narray_count 32\nsimd_arrays_per_engine 1\nnum_xcc 8\ngfx_target_version 90402\nlocation_id 2560\ndomain 0\n",
		"/dev/mkfd": "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatalf("make the machine: %v", err)
		}
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatalf("make the machine: %v", err)
		}
	}
	return n
}

// Run runs the tool of the brand that has it.
func (n *Node) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	for _, f := range n.fakes {
		if _, err := f.Look(name); err == nil {
			return f.Run(ctx, name, args...)
		}
	}
	return share.Output{ExitCode: -1}, &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// Look finds a tool.
func (n *Node) Look(name string) (string, error) {
	for _, f := range n.fakes {
		if path, err := f.Look(name); err == nil {
			return path, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// Things is what the brands' tools have made.
func (n *Node) Things() []string {
	var out []string
	for _, m := range n.makes {
		out = append(out, m.Things()...)
	}
	return out
}

// Kind is one kind of share on the node: which backend makes it, and an ask for it.
type Kind struct {
	Backend string
	Ask     share.Ask
}

// Kinds are the kinds of shares of the node, each asked for by a task whose name begins as given.
func Kinds(task string) []Kind {
	var kinds []Kind
	for _, k := range []struct {
		vendor  accel.Vendor
		backend string
		qos     accel.QoS
		mib     uint64
		pct     int
		card    grant.Card
	}{
		{accel.MThreads, accel.ModeSGPU, accel.Silver, 8192, 25, grant.Card{Model: "S4000", MemoryMiB: 49152, Nodes: []string{"/dev/mtgpu.0"}}},
		{accel.Hygon, accel.ModeVDCU, accel.Silver, 8192, 25, grant.Card{Model: "K100_AI", MemoryMiB: 32752, PCI: "0000:3d:00.0"}},
		{accel.Cambricon, accel.ModeSMLU, accel.Gold, 4096, 25, grant.Card{Model: "MLU370-X8", MemoryMiB: 23374}},
		{accel.Biren, accel.ModeSVI, accel.Gold, 16384, 0, grant.Card{Model: "Biren166C", MemoryMiB: 65536, Nodes: []string{"/dev/biren/card_0"}}},
		{accel.Ascend, accel.ModeVNPU, accel.Gold, 16384, 0, grant.Card{Model: "910B3", MemoryMiB: 65536, Index: 3, PCI: "0000:5a:00.0", Nodes: []string{"/dev/davinci3"}}},
		{accel.Ascend, accel.ModeHAMi, accel.Silver, 10240, 25, grant.Card{Model: "910B3", MemoryMiB: 65536, Index: 3, PCI: "0000:5a:00.0", Nodes: []string{"/dev/davinci3"}}},
		{accel.Kunlunxin, accel.ModeVXPU, accel.Silver, 24576, 0, grant.Card{Model: "P800-OAM", MemoryMiB: 98304, Nodes: []string{"/dev/xpu0"}}},
		{accel.AMD, accel.ModeHAMi, accel.Silver, 49152, 25, grant.Card{Model: "MI300X", MemoryMiB: 196608, PCI: "0000:0a:00.0"}},
	} {
		k.card.UUID = string(k.vendor) + "-0"
		id := task + "/" + string(k.vendor) + "/" + k.backend
		kinds = append(kinds, Kind{Backend: k.backend, Ask: share.Ask{
			ID: share.NewID(id, k.vendor, k.card.UUID), TaskID: id, AllocID: task, Vendor: k.vendor, Card: k.card, Form: accel.Shared,
			MemoryMiB: k.mib, ComputePct: k.pct, QoS: k.qos, Of: 1, Container: true,
		}})
	}
	return kinds
}
