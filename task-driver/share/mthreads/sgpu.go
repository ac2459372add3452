// Package mthreads makes shares (sGPU) of Moore Threads cards. The maker's kernel module and container toolkit hold a share to
// its size, but how they are told is not published outside the maker's GPU Operator for Kubernetes: a program that the node's
// administrator supplies tells them, and this package decides what it is asked and when.
//
//	list                              prints a line "ID INDEX MIB CORES" for each share it made
//	create ID INDEX MIB CORES         makes one of a card; an ID that is there is an error
//	setup ID                          prints what a container needs: lines "env NAME=VALUE", "node PATH", "runtime NAME"
//	destroy ID
package mthreads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// cores is in how many parts a card's compute is given; unitMiB is what memory is counted in.
const (
	cores   = 16
	unitMiB = 512
)

// allowed are the numbers of units that a share may have (Project-HAMi/HAMi pkg/device/mthreads/device.go).
var allowed = []uint64{2, 4, 8, 16, 32, 64, 96}

// SGPUs is the backend.
type SGPUs struct {
	host    share.Host
	program string
}

var _ share.Backend = (*SGPUs)(nil)

// New makes the backend.
func New(h share.Host) *SGPUs {
	return &SGPUs{host: h, program: maker.Program(accel.MThreads, accel.ModeSGPU)}
}

// Name is sgpu.
func (b *SGPUs) Name() string { return accel.ModeSGPU }

// Vendor is Moore Threads.
func (b *SGPUs) Vendor() accel.Vendor { return accel.MThreads }

// Describe says what is kept apart.
func (b *SGPUs) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByDriver, Compute: share.ByDriver, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "How an sGPU is made is published for the maker's GPU Operator in Kubernetes only: it needs a program from the node's administrator, and what is enforced is what the maker says. Memory in 2, 4, 8, 16, 32, 64 or 96 units of 512 MiB, compute in sixteenths by time. Several cards only whole. Not tested on hardware by this project.",
		LimitsZH: "sGPU 的创建方式仅在厂商面向 Kubernetes 的 GPU Operator 中公开：需要节点管理员提供程序，隔离能力以厂商说明为准。显存只能为 2、4、8、16、32、64、96 个 512 MiB，算力按十六分之一分时。多卡只能整卡。本项目未在真实硬件上验证。",
	}
}

// Probe wants the administrator's program.
func (b *SGPUs) Probe(ctx context.Context) error {
	if err := maker.NeedProgram(b.host.Tool, b.program, "Moore Threads publishes no command that makes an sGPU, its GPU Operator does so inside Kubernetes only"); err != nil {
		return err
	}
	_, err := b.list(ctx)
	return err
}

// made is one share as the program lists it.
type made struct {
	Index, Cores int
	MiB          uint64
}

func (b *SGPUs) list(ctx context.Context) (map[share.ID]made, error) {
	out, err := maker.Run(ctx, b.host.Tool, b.program, "list")
	if err != nil {
		return nil, err
	}
	return parseList(out)
}

// parseList reads the program's list. Names that are not ours are somebody else's.
func parseList(out string) (map[share.ID]made, error) {
	rows, err := maker.Table(out, 4)
	if err != nil {
		return nil, err
	}
	all := map[share.ID]made{}
	for _, row := range rows {
		index, err := strconv.ParseUint(row[1], 10, 16)
		mib, mibErr := strconv.ParseUint(row[2], 10, 32)
		n, coresErr := strconv.ParseUint(row[3], 10, 16)
		if err := errors.Join(err, mibErr, coresErr); err != nil {
			return nil, fmt.Errorf("line %q: %w", strings.Join(row, " "), err)
		}
		if share.IsID(row[0]) {
			all[share.ID(row[0])] = made{Index: int(index), MiB: mib, Cores: int(n)}
		}
	}
	return all, nil
}

// ruleOf is the rule for a card of this memory, 0 when it is not known.
func ruleOf(cardMiB uint64) accel.Rounding {
	r := accel.Rounding{Mode: accel.ModeSGPU, Parts: cores}
	for _, units := range allowed {
		if mib := units * unitMiB; cardMiB == 0 || mib <= cardMiB {
			r.Templates = append(r.Templates, accel.Template{Name: strconv.FormatUint(units, 10), MemoryMiB: mib})
		}
	}
	return r
}

// Prepare has the program make the share.
func (b *SGPUs) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	switch {
	case !a.Container:
		return share.Setup{}, errors.New("the maker's container toolkit holds an sGPU to its size, which a process of the host does not have: set image, or ask for qos bronze")
	case a.Of > 1:
		return share.Setup{}, fmt.Errorf("a task with several Moore Threads cards has them whole, this one asks for shares of %d: leave memory and compute out, or ask for 1 card", a.Of)
	}
	s, err := maker.Fit(ruleOf(a.Card.MemoryMiB), a)
	if err != nil {
		return share.Setup{}, err
	}
	want := made{Index: a.Card.Index, MiB: s.MemoryMiB, Cores: cores}
	if a.ComputePct > 0 {
		want.Cores = (a.ComputePct*cores + 99) / 100
	}
	all, err := b.list(ctx)
	if err != nil {
		return share.Setup{}, err
	}
	old, there := all[a.ID]
	if there && old != want {
		if err := b.destroy(ctx, a.ID); err != nil {
			return share.Setup{}, err
		}
		there = false
	}
	var setup share.Setup
	if !there {
		event(fmt.Sprintf("making an sGPU of card %d: %s, %d of %d cores", want.Index, accel.FormatMiB(want.MiB), want.Cores, cores))
		_, err = maker.Run(ctx, b.host.Tool, b.program, "create", string(a.ID), strconv.Itoa(want.Index), strconv.FormatUint(want.MiB, 10), strconv.Itoa(want.Cores))
	}
	if err == nil {
		setup, err = b.setup(ctx, a.ID)
	}
	if err != nil {
		undo, cancel := maker.Undoing(ctx)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
	}
	return setup, nil
}

func (b *SGPUs) setup(ctx context.Context, id share.ID) (share.Setup, error) {
	out, err := maker.Run(ctx, b.host.Tool, b.program, "setup", string(id))
	if err != nil {
		return share.Setup{}, err
	}
	return parseSetup(out)
}

// parseSetup reads what the program says of a container.
func parseSetup(out string) (share.Setup, error) {
	var s share.Setup
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		kind, value, _ := strings.Cut(line, " ")
		value = strings.TrimSpace(value)
		switch name, text, ok := strings.Cut(value, "="); {
		case kind == "env" && ok && name != "":
			if s.Env == nil {
				s.Env = map[string]string{}
			}
			s.Env[name] = text
		case kind == "node" && strings.HasPrefix(value, "/dev/"):
			s.Nodes = append(s.Nodes, value)
		case kind == "runtime" && value != "":
			s.Runtime = value
		default:
			return share.Setup{}, fmt.Errorf("setup prints %q: it is to print env NAME=VALUE, node /dev/PATH or runtime NAME", line)
		}
	}
	if len(s.Env) == 0 && len(s.Nodes) == 0 && s.Runtime == "" {
		return share.Setup{}, errors.New("setup prints nothing: without a variable, a node or a runtime the share would bind nobody")
	}
	slices.Sort(s.Nodes)
	return s, nil
}

func (b *SGPUs) destroy(ctx context.Context, id share.ID) error {
	_, err := maker.Run(ctx, b.host.Tool, b.program, "destroy", string(id))
	return err
}

// Release has the program destroy the share.
func (b *SGPUs) Release(ctx context.Context, id share.ID) error {
	all, err := b.list(ctx)
	if err != nil {
		return err
	}
	if _, there := all[id]; !there {
		return nil
	}
	return b.destroy(ctx, id)
}

// Reconcile destroys shares with our names that are not live.
func (b *SGPUs) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	all, err := b.list(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for id := range all {
		if _, is := live[id]; !is {
			problems = append(problems, b.destroy(ctx, id))
		}
	}
	return errors.Join(problems...)
}
