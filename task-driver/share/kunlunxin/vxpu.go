// Package kunlunxin makes shares (vXPU) of Kunlunxin cards by the maker's container runtime, which has the kernel driver hold
// a container to the memory that its environment says. There is nothing to make before and nothing to give back after: the
// runtime does both with the container.
package kunlunxin

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// Runtime is the name under which the maker has its runtime registered with Docker; program and cli are its parts. Variables
// are those of the guide of the maker's xpu-container-toolkit.
const (
	Runtime = "xpu"
	program = "/usr/bin/xpu-container-runtime"
	cli     = "xpu-container-cli"

	envDevices = "CXPU_VISIBLE_DEVICES"
	envLimit   = "CXPU_CONTAINER_MEMORY_LIMIT" // bytes
)

// rules are the sizes by model, as Project-HAMi's documentation of kunlunxin.com/vxpu-memory has them.
var rules = map[string]accel.Rounding{
	"P800": {Mode: accel.ModeVXPU, Templates: []accel.Template{
		{Name: "1-4", MemoryMiB: 24576, Max: 4}, {Name: "1-2", MemoryMiB: 49152, Max: 2}, {Name: "1", MemoryMiB: 98304, Max: 1},
	}},
}

// VXPUs is the backend.
type VXPUs struct{ host share.Host }

var _ share.Backend = (*VXPUs)(nil)

// New makes the backend.
func New(h share.Host) *VXPUs { return &VXPUs{host: h} }

// Name is vxpu.
func (b *VXPUs) Name() string { return accel.ModeVXPU }

// Vendor is Kunlunxin.
func (b *VXPUs) Vendor() accel.Vendor { return accel.Kunlunxin }

// Describe says what is kept apart.
func (b *VXPUs) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByDriver, Compute: share.NotAtAll, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "Quarters and halves of a P800 only (24576 and 49152 MiB). Memory is held by the kernel driver for the whole container; compute is not: a limit of compute is refused. One card a task, containers only, with the maker's runtime xpu. Not tested on hardware by this project.",
		LimitsZH: "仅支持 P800 的四分之一和二分之一（24576、49152 MiB）。显存由内核驱动按容器限制，算力不限制，请求算力上限会被拒绝。每个任务一张卡，仅限容器，需要厂商的 xpu 运行时。本项目未在真实硬件上验证。",
	}
}

var driverText = regexp.MustCompile(`(?i)driver version:\s*(\d+(?:\.\d+){1,3})`)

// oldest is the first driver that shares P800 cards, by Project-HAMi's documentation.
var oldest = []int{5, 0, 21, 16}

// Probe wants the maker's runtime and a driver that shares cards.
func (b *VXPUs) Probe(ctx context.Context) error {
	if _, err := b.host.Tool.Look(program); err != nil {
		return fmt.Errorf("%s is not there: install xpu-container-toolkit (1.0.2 or later) with libxpu-container, register it in /etc/docker/daemon.json as the runtime %q and restart Docker (%w)", program, Runtime, err)
	}
	out, err := maker.Run(ctx, b.host.Tool, cli, "info")
	if err != nil {
		return fmt.Errorf("%s info does not reach the driver: install libxpu-container-tools and load the driver (sudo modprobe kunlun): %w", cli, err)
	}
	m := driverText.FindStringSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s info tells no version of the driver: run it, and upgrade libxpu-container-tools", cli)
	}
	if !atLeast(m[1], oldest) {
		return fmt.Errorf("the driver is version %s, shares need 5.0.21.16 or later: upgrade XRE", m[1])
	}
	return nil
}

func atLeast(version string, want []int) bool {
	parts := strings.Split(version, ".")
	for i, least := range want {
		n := 0
		if i < len(parts) {
			n, _ = strconv.Atoi(parts[i]) // digits by the expression; as many as overflow count as 0
		}
		if n != least {
			return n > least
		}
	}
	return true
}

// ruleOf is the rule of a model, which tools write as P800, P800-OAM or P800 OAM.
func ruleOf(model string) (accel.Rounding, bool) {
	name, _, _ := strings.Cut(strings.ReplaceAll(model, " ", "-"), "-")
	r, ok := rules[name]
	return r, ok
}

// Prepare tells the runtime the card and the limit.
func (b *VXPUs) Prepare(_ context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	switch {
	case !a.Container:
		return share.Setup{}, errors.New("the maker's container runtime holds a vXPU to its memory, which a process of the host does not have: set image, or ask for qos bronze")
	case a.Of > 1:
		return share.Setup{}, fmt.Errorf("how the runtime spreads one limit over %d cards is not published: ask for whole cards, or for 1", a.Of)
	case a.ComputePct > 0:
		return share.Setup{}, errors.New("a vXPU has no limit of compute: leave compute out, or ask for the whole card")
	}
	rule, ok := ruleOf(a.Card.Model)
	if !ok {
		return share.Setup{}, fmt.Errorf("no sizes are published of shares of a %s: ask for the whole card, or for qos bronze", a.Card.Model)
	}
	s, err := maker.Fit(rule, a)
	if err != nil {
		return share.Setup{}, err
	}
	index := maker.NodeNumber(a.Card, "/dev/xpu")
	event(fmt.Sprintf("vXPU of card %d: %s, held by the driver", index, accel.FormatMiB(s.MemoryMiB)))
	return share.Setup{
		Env:     map[string]string{envDevices: strconv.Itoa(index), envLimit: strconv.FormatUint(s.MemoryMiB<<20, 10)},
		Runtime: Runtime,
	}, nil
}

// Release has nothing to give back.
func (b *VXPUs) Release(context.Context, share.ID) error { return nil }

// Reconcile finds nothing: what the runtime made goes with its container.
func (b *VXPUs) Reconcile(context.Context, map[share.ID]share.Ask) error { return nil }
