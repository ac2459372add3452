// Package bronze makes shares by agreement only: the task is told its limits, and one that takes more of the card's memory
// than it was given is seen within ten seconds and told so, or stopped. Nothing refuses an allocation. How a brand tells
// what processes hold belongs to a Reader; limits that are enforced belong to the other backends.
package bronze

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Name is the backend's name.
const Name = "bronze"

// Policy is what happens to a task that takes more than it was given.
type Policy string

// The policies.
const (
	Warn Policy = "warn" // its owner is told
	Stop Policy = "stop" // it is stopped, and its restart policy decides
)

// ParsePolicy reads a policy; empty is Warn.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case "":
		return Warn, nil
	case Warn, Stop:
		return p, nil
	}
	return "", fmt.Errorf("%q is not known: write warn or stop", s)
}

// Options are what the plugin's config and tests say.
type Options struct {
	Overuse Policy
	Clock   clock.Clock // the system's when nil
}

// Backend is the backend for every brand.
type Backend struct {
	host    share.Host
	readers map[accel.Vendor]Reader
	overuse Policy
	clock   clock.Clock
}

var (
	_ share.Backend = (*Backend)(nil)
	_ share.Joiner  = (*Backend)(nil)
	_ share.Keeper  = (*Backend)(nil)
)

// New makes the backend. Brands without a reader are not watched.
func New(h share.Host, readers map[accel.Vendor]Reader, o Options) *Backend {
	b := &Backend{host: h, readers: readers, overuse: o.Overuse, clock: o.Clock}
	if b.overuse == "" {
		b.overuse = Warn
	}
	if b.clock == nil {
		b.clock = clock.System()
	}
	return b
}

// Name is the backend's name.
func (b *Backend) Name() string { return Name }

// Vendor is every brand.
func (b *Backend) Vendor() accel.Vendor { return "" }

// Describe says that nothing is enforced.
func (b *Backend) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Bronze, Memory: share.Watched, Compute: share.NotAtAll, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "Not isolated. A task that takes more memory than it was given is seen within 10 s where the brand tells what each process holds (nvidia, amd, ascend, cambricon, iluvatar, intel, kunlunxin, metax, mthreads), and warned or stopped; its neighbours may have failed by then. Of hygon only the card's use is told: all its tasks are warned together. Of biren and enflame nothing is.",
		LimitsZH: "无隔离。仅在能得知每个进程占用的品牌（nvidia、amd、ascend、cambricon、iluvatar、intel、kunlunxin、metax、mthreads）上，10 秒内可发现超用显存的任务并警告或停止；此前邻居可能已经失败。hygon 只能得知整卡占用：同卡任务一起收到警告。biren 和 enflame 无从得知。",
	}
}

// Probe always passes: there is nothing to be missing.
func (b *Backend) Probe(context.Context) error { return nil }

// Variables that tell a task its limits. MemoryFraction is for frameworks that take a part of the card's memory.
const (
	envFraction = "HETEROFLOW_MEMORY_FRACTION"
	envShare    = "HETEROFLOW_SHARE"
	notIsolated = "not isolated"
)

// Prepare tells the limits.
func (b *Backend) Prepare(_ context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	text := share.NotEnforced(a)
	if !accel.IsSimulated(a.Card.UUID) {
		text = b.agreement(a)
	}
	event(text)
	env := map[string]string{envShare: notIsolated}
	if a.Card.MemoryMiB > 0 && a.MemoryMiB > 0 {
		env[envFraction] = fraction(a.MemoryMiB, a.Card.MemoryMiB)
	}
	return share.Setup{Env: env}, nil
}

// agreement is what the owner of a share is told of it.
func (b *Backend) agreement(a share.Ask) string {
	text := fmt.Sprintf("share of %s card %s: %s by agreement, not isolated", a.Vendor, a.Card.UUID, accel.FormatMiB(a.MemoryMiB))
	switch {
	case b.readers[a.Vendor] == nil:
		text += "; nothing on this node tells what its processes hold, so that it is not watched"
	case onlyCards(b.readers[a.Vendor]):
		text += "; its brand tells what the card holds and not who does: when that is more than all were given, all are warned"
	case b.overuse == Stop:
		text += "; a task that takes more is stopped"
	default:
		text += "; a task that takes more is warned"
	}
	return text
}

// fraction is part of all with three digits, rounded down.
func fraction(part, all uint64) string {
	return strconv.FormatFloat(float64(part*1000/all)/1000, 'f', 3, 64)
}

// Join tells the smallest fraction, which fits every card.
func (b *Backend) Join(setups []share.Setup) (share.Setup, error) {
	least := slices.MinFunc(setups, func(x, y share.Setup) int {
		fx, fy := x.Env[envFraction], y.Env[envFraction]
		switch {
		case fx == fy:
			return 0
		case fx < fy: // one digit before the point, three behind; one that is not known comes first
			return -1
		}
		return 1
	})
	return least, nil
}

// Release has nothing to give back.
func (b *Backend) Release(context.Context, share.ID) error { return nil }

// Reconcile finds nothing.
func (b *Backend) Reconcile(context.Context, map[share.ID]share.Ask) error { return nil }
