// Package cambricon makes shares (sMLU) of Cambricon cards: a profile says how large, an instance of it is the share. The maker
// publishes the calls of its library libcndev and no command, and this driver calls no library of a maker: a program that the
// node's administrator supplies makes the calls, and this package decides which and when.
package cambricon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// rule is the maker's plugin's: 256 MiB and percent (min-dsmlu-unit and CAMBRICON_DSMLU_PROFILE).
var rule = accel.Rounding{Mode: accel.ModeSMLU, StepMiB: 256, Parts: 100}

// SMLUs is the backend. Instances bear their share's ID; of the profiles that we made notes tell, since profiles have no names.
type SMLUs struct {
	host  share.Host
	cndev cndev
	notes share.Notes[note]
}

// note is a profile that we made, or are about to make.
type note struct {
	Index int    `json:"index"`
	Pct   int    `json:"pct"`
	MiB   uint64 `json:"mib"`
	// Before are the profiles that there were, Made is ours once its number is known: others may make one of this size too.
	Before []int `json:"before,omitempty"`
	Made   *int  `json:"made,omitempty"`
}

// owns reports whether a profile is the one that the note is about.
func (n note) owns(p profile) bool {
	if p.Pct != n.Pct || p.MiB != n.MiB {
		return false
	}
	if n.Made != nil {
		return p.ID == *n.Made
	}
	return !slices.Contains(n.Before, p.ID)
}

func (n note) id() share.ID {
	return share.ID("profile-" + strconv.Itoa(n.Index) + "-" + strconv.Itoa(n.Pct) + "-" + strconv.FormatUint(n.MiB, 10))
}

var _ share.Backend = (*SMLUs)(nil)

// New makes the backend.
func New(h share.Host) *SMLUs {
	return &SMLUs{
		host: h, cndev: cndev{tool: h.Tool, path: maker.Program(accel.Cambricon, accel.ModeSMLU)},
		notes: share.NotesOf[note](h, string(accel.Cambricon), accel.ModeSMLU),
	}
}

// Name is smlu.
func (b *SMLUs) Name() string { return accel.ModeSMLU }

// Vendor is Cambricon.
func (b *SMLUs) Vendor() accel.Vendor { return accel.Cambricon }

// Describe says what an instance keeps apart.
func (b *SMLUs) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Gold, Memory: share.ByDriver, Compute: share.ByDriver, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "The maker publishes its library's calls and no command: it needs a program from the node's administrator, and what is enforced is what the maker says. Memory in steps of 256 MiB, compute in percent; a share without a limit of compute gets as much of it as of the memory. Not tested on hardware by this project.",
		LimitsZH: "厂商只公开了库接口而没有命令：需要节点管理员提供程序，隔离能力以厂商说明为准。显存以 256 MiB 为步长，算力按百分比；未设算力上限的切片按显存比例获得算力。本项目未在真实硬件上验证。",
	}
}

// Probe wants the administrator's program.
func (b *SMLUs) Probe(ctx context.Context) error {
	if err := maker.NeedProgram(b.host.Tool, b.cndev.path, "Cambricon publishes no command that makes an sMLU, only the calls of its library libcndev"); err != nil {
		return err
	}
	_, err := b.cndev.instances(ctx)
	return err
}

// percent is the compute of a share: what is asked, else its part of the card's memory.
func percent(a share.Ask, s accel.Share) int {
	switch {
	case a.ComputePct > 0:
		return s.Parts
	case a.Card.MemoryMiB == 0:
		return 1
	}
	return max(1, int(s.MemoryMiB*100/a.Card.MemoryMiB))
}

// Prepare makes an instance, and the profile where there is none of that size.
func (b *SMLUs) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	s, err := maker.Fit(rule, a)
	if err != nil {
		return share.Setup{}, err
	}
	want := note{Index: a.Card.Index, Pct: percent(a, s), MiB: s.MemoryMiB}
	old, err := b.instance(ctx, a.ID)
	if err != nil {
		return share.Setup{}, err
	}
	profiles, err := b.profiles(ctx, want.Index)
	if err != nil {
		return share.Setup{}, err
	}
	if old != nil {
		if old.Index == want.Index && slices.Contains(profiles, profile{ID: old.Profile, Pct: want.Pct, MiB: want.MiB}) {
			return setupOf(*old), nil
		}
		if err := b.Release(ctx, a.ID); err != nil {
			return share.Setup{}, err
		}
		if profiles, err = b.profiles(ctx, want.Index); err != nil {
			return share.Setup{}, err
		}
	}
	event(fmt.Sprintf("making an sMLU of card %d: %s, %d %% of compute", want.Index, accel.FormatMiB(want.MiB), want.Pct))
	made, err := b.make(ctx, a.ID, want, profiles)
	if err != nil {
		undo, cancel := maker.Undoing(ctx)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
	}
	return setupOf(made), nil
}

// looks is how often the list of profiles is read until it is the same twice.
const looks = 4

// profiles lists a card's profiles. They have no names, so that what is ours is told by what is there before and after: a list
// that is wrong once would leave one behind, or take a stranger's for ours. It is believed when it comes twice.
func (b *SMLUs) profiles(ctx context.Context, index int) ([]profile, error) {
	last, err := b.cndev.profiles(ctx, index)
	for range looks {
		var again []profile
		if err == nil {
			again, err = b.cndev.profiles(ctx, index)
		}
		if err != nil {
			return nil, err
		}
		if slices.Equal(last, again) {
			return again, nil
		}
		last = again
	}
	return nil, fmt.Errorf("the list of profiles of card %d is another one each time: see what else makes profiles on it", index)
}

// setupOf says how to use an instance: by its node beside the card's.
func setupOf(i instance) share.Setup { return share.Setup{Nodes: []string{i.Node}} }

// instance is the share's instance; nil when there is none.
func (b *SMLUs) instance(ctx context.Context, id share.ID) (*instance, error) {
	all, err := b.cndev.instances(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(i instance) bool { return i.Name == string(id) })
	if at < 0 {
		return nil, nil
	}
	return &all[at], nil
}

func (b *SMLUs) make(ctx context.Context, id share.ID, want note, profiles []profile) (instance, error) {
	same := func(p profile) bool { return p.Pct == want.Pct && p.MiB == want.MiB }
	at := slices.IndexFunc(profiles, same)
	var of profile
	if at >= 0 {
		of = profiles[at]
	} else {
		for _, p := range profiles {
			want.Before = append(want.Before, p.ID)
		}
		var err error
		if of, err = b.makeProfile(ctx, want); err != nil {
			return instance{}, err
		}
	}
	if err := b.cndev.createInstance(ctx, want.Index, of.ID, string(id)); err != nil {
		return instance{}, err
	}
	made, err := b.instance(ctx, id)
	if err == nil && made == nil {
		err = fmt.Errorf("instance %s was made and is not listed", id)
	}
	if err != nil {
		return instance{}, err
	}
	return *made, nil
}

// makeProfile makes a profile that is noted before, and found by what is listed after.
func (b *SMLUs) makeProfile(ctx context.Context, n note) (profile, error) {
	if err := b.notes.Put(n.id(), n); err != nil {
		return profile{}, err
	}
	if err := b.cndev.createProfile(ctx, n.Index, n.Pct, n.MiB); err != nil {
		return profile{}, err
	}
	profiles, err := b.profiles(ctx, n.Index)
	if err != nil {
		return profile{}, err
	}
	own := slices.DeleteFunc(profiles, func(p profile) bool { return !n.owns(p) })
	switch len(own) {
	case 0:
		return profile{}, fmt.Errorf("a profile of %d %% and %s was made and is not listed", n.Pct, maker.Exact(n.MiB))
	case 1:
	default:
		return profile{}, fmt.Errorf("somebody else made a profile of %d %% and %s at the same moment: try again", n.Pct, maker.Exact(n.MiB))
	}
	n.Made = &own[0].ID
	return own[0], b.notes.Put(n.id(), n)
}

// Release destroys the instance, and the profiles of ours that nothing is made of any more.
func (b *SMLUs) Release(ctx context.Context, id share.ID) error {
	i, err := b.instance(ctx, id)
	if err != nil {
		return err
	}
	if i != nil {
		if err := b.cndev.destroyInstance(ctx, i.Index, i.Name); err != nil {
			return err
		}
	}
	return b.sweep(ctx)
}

// sweep destroys the profiles that we made and that no instance is of.
func (b *SMLUs) sweep(ctx context.Context) error {
	notes, err := b.notes.All()
	if len(notes) == 0 {
		return err
	}
	all, err := b.cndev.instances(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, n := range notes {
		problems = append(problems, b.sweepOne(ctx, n, all))
	}
	return errors.Join(problems...)
}

func (b *SMLUs) sweepOne(ctx context.Context, n note, all []instance) error {
	profiles, err := b.profiles(ctx, n.Index)
	if err != nil {
		return err
	}
	own := slices.DeleteFunc(slices.Clone(profiles), func(p profile) bool { return !n.owns(p) })
	if len(own) > 1 { // a crash cut the first look at ours short, and one was made by somebody else since
		b.host.Logger().Warn("profiles of one size, of which one is this driver's: which cannot be told, they are left", "card", n.Index, "percent", n.Pct, "mib", n.MiB)
	}
	if len(own) != 1 {
		return b.notes.Drop(n.id())
	}
	p := own[0]
	if slices.ContainsFunc(all, func(i instance) bool { return i.Index == n.Index && i.Profile == p.ID }) {
		return nil
	}
	if err := b.cndev.destroyProfile(ctx, n.Index, p.ID); err != nil {
		return err
	}
	if profiles, err = b.profiles(ctx, n.Index); err != nil {
		return err
	}
	if slices.ContainsFunc(profiles, n.owns) {
		return fmt.Errorf("profile %d of card %d was destroyed and is listed still", p.ID, n.Index)
	}
	return b.notes.Drop(n.id())
}

// Reconcile destroys instances with our names that are not live.
func (b *SMLUs) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	all, err := b.cndev.instances(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, i := range all {
		if _, is := live[share.ID(i.Name)]; !is && share.IsID(i.Name) {
			problems = append(problems, b.cndev.destroyInstance(ctx, i.Index, i.Name))
		}
	}
	return errors.Join(append(problems, b.sweep(ctx))...)
}
