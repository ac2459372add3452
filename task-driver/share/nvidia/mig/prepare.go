package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// undoTime bounds how long it is tried to take back what was half made.
const undoTime = 20 * time.Second

// Prepare makes the GPU instance with its compute instance, or finds that it is made.
func (b *Backend) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	setup, there, err := b.adopt(ctx, a)
	if err != nil || there {
		return setup, err
	}
	s, err := b.state(ctx, a.Card.UUID)
	if err != nil {
		return share.Setup{}, err
	}
	if s.Current != enabled || s.Pending != enabled {
		if s.Current != enabled && s.Current != disabled {
			return share.Setup{}, fmt.Errorf("card %s has no MIG", a.Card.UUID)
		}
		return share.Setup{}, errors.New(modeSentence(a.Card.UUID, s.Current, s.Pending))
	}
	n, err := b.plan(ctx, a)
	if err != nil {
		return share.Setup{}, err
	}
	setup, err = b.create(ctx, a.ID, n)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
	}
	event(fmt.Sprintf("MIG %s created on %s: %s", n.Name, a.Card.UUID, setup.Visible))
	if a.Of > 1 && a.Position == 0 {
		event(fmt.Sprintf("the task holds %d MIG devices: a CUDA process sees the first of CUDA_VISIBLE_DEVICES only, give each its own", a.Of))
	}
	return setup, nil
}

// adopt finds the share as it was made. What is there and does not serve, or was half made, is taken back.
func (b *Backend) adopt(ctx context.Context, a share.Ask) (share.Setup, bool, error) {
	now, past, err := b.notes.all()
	if _, old := past[a.ID]; old {
		err = errors.Join(err, b.notes.drop(a.ID))
	}
	n, noted := now[a.ID]
	if err != nil || !noted {
		return share.Setup{}, false, err
	}
	if n.serves(a) && n.GI != nil {
		list, err := b.instances(ctx, n.Card)
		if err != nil {
			return share.Setup{}, false, err
		}
		if slices.ContainsFunc(list, n.names) {
			setup, err := b.device(ctx, n.Card, *n.GI)
			switch {
			case err != nil && !errors.Is(err, errNoDevice):
				return share.Setup{}, false, err
			case err == nil && (n.UUID == "" || n.UUID == setup.Visible):
				return setup, true, b.noteDevice(a.ID, n, setup)
			}
		}
	}
	return share.Setup{}, false, b.Release(ctx, a.ID)
}

// plan chooses profile and place.
func (b *Backend) plan(ctx context.Context, a share.Ask) (note, error) {
	taken, err := b.instances(ctx, a.Card.UUID)
	if err != nil {
		return note{}, err
	}
	profiles, err := b.profiles(ctx, a.Card.UUID)
	if err != nil {
		return note{}, err
	}
	p, err := pick(profiles, a)
	if err != nil {
		return note{}, fmt.Errorf("card %s: %w", a.Card.UUID, err)
	}
	start, ok := place(p, profiles, taken)
	if !ok {
		return note{}, b.noRoom(a.Card.UUID, p.name, taken)
	}
	return note{
		Card: a.Card.UUID, Profile: p.id, Name: p.name, Start: start, Size: p.size,
		MemoryMiB: a.MemoryMiB, ComputePct: a.ComputePct, TaskID: a.TaskID,
	}, nil
}

// noRoom says what stands on the card and whose it is.
func (b *Backend) noRoom(card, profile string, taken []instance) error {
	now, _, err := b.notes.all()
	if err != nil {
		b.host.Logger().Debug("notes of GPU instances not read", "error", err)
	}
	var on []string
	for _, i := range taken {
		whose := "not made by this driver"
		for _, n := range now {
			if n.Card == card && n.names(i) {
				whose = "of task " + n.TaskID
			}
		}
		on = append(on, fmt.Sprintf("%s (%s)", i, whose))
	}
	if len(on) == 0 {
		on = []string{"nothing"}
	}
	return fmt.Errorf("card %s has no place for MIG %s (Insufficient Resources); on it: %s", card, profile, strings.Join(on, ", "))
}

// create makes what is planned. After an error the note stays, which tells what to take back.
func (b *Backend) create(ctx context.Context, id share.ID, n note) (share.Setup, error) {
	if err := b.notes.put(id, n); err != nil {
		return share.Setup{}, err
	}
	out, err := b.mig(ctx, n.Card, "-cgi", fmt.Sprintf("%d:%d", n.Profile, n.Start), "-C")
	if err != nil {
		return share.Setup{}, err
	}
	if out.ExitCode != 0 {
		return share.Setup{}, b.refused(ctx, out, n)
	}
	list, err := b.instances(ctx, n.Card)
	if err != nil {
		return share.Setup{}, err
	}
	at := slices.IndexFunc(list, n.names)
	if at < 0 {
		return share.Setup{}, fmt.Errorf("nvidia-smi says that it made MIG %s on %s, and it is not there", n.Name, n.Card)
	}
	n.GI = &list[at].id
	if err := b.notes.put(id, n); err != nil {
		return share.Setup{}, err
	}
	setup, err := b.device(ctx, n.Card, *n.GI)
	if err != nil {
		return share.Setup{}, err
	}
	return setup, b.noteDevice(id, n, setup)
}

// noteDevice notes which device was made, so that one that somebody else makes later at its place is not taken for it.
func (b *Backend) noteDevice(id share.ID, n note, made share.Setup) error {
	if n.UUID == made.Visible {
		return nil
	}
	n.UUID = made.Visible
	return b.notes.put(id, n)
}

// refused says why the tool did not make what is planned.
func (b *Backend) refused(ctx context.Context, out share.Output, n note) error {
	text := out.Stdout + out.Stderr
	what := fmt.Sprintf("create MIG %s on %s", n.Name, n.Card)
	half := strings.Contains(text, "Successfully created GPU instance")
	switch {
	case half:
		return fmt.Errorf("%s: the compute instance was not created, the GPU instance is taken back: %s", what, firstLine(out))
	case strings.Contains(text, "In use by another client"):
		return fmt.Errorf("%s: In use by another client: %s", what, b.clients(ctx, n.Card, nil))
	case strings.Contains(text, "Insufficient Resources"):
		taken, err := b.instances(ctx, n.Card)
		if err != nil {
			return errors.Join(said(out, what), err)
		}
		return b.noRoom(n.Card, n.Name, taken)
	case strings.Contains(text, "Insufficient Permissions"):
		return fmt.Errorf("%s: Insufficient Permissions: run Nomad's client as root", what)
	}
	return said(out, what)
}

// Release destroys the share's instance. One that is in use stays, and is told with those who use it.
func (b *Backend) Release(ctx context.Context, id share.ID) error {
	now, past, err := b.notes.all()
	n, noted := now[id]
	switch _, old := past[id]; {
	case noted:
		if err := b.destroy(ctx, n, now); err != nil {
			return err
		}
	case !old:
		return err // never made, or what is told of it cannot be read
	}
	return errors.Join(err, b.notes.drop(id))
}

// destroy destroys what a note names, and nothing when that is not there.
func (b *Backend) destroy(ctx context.Context, n note, all map[share.ID]note) error {
	ours := func(i instance) bool { return n.names(i) && (n.GI != nil || !anothers(all, n.Card, i)) }
	list, err := b.instances(ctx, n.Card)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list, ours)
	if at < 0 {
		return nil
	}
	gi := list[at].id
	if foreign, err := b.replaced(ctx, n, gi); err != nil || foreign {
		return err
	}
	var last share.Output
	for _, verb := range []string{"-dci", "-dgi"} {
		out, err := b.mig(ctx, n.Card, "-gi", fmt.Sprint(gi), verb)
		if err != nil {
			return err
		}
		if out.ExitCode != 0 {
			last = out
		}
	}
	if list, err = b.instances(ctx, n.Card); err != nil {
		return err
	}
	if !slices.ContainsFunc(list, ours) {
		return nil // whatever was said: such as that there was no compute instance
	}
	what := fmt.Sprintf("destroy MIG %s of %s", n.Name, n.Card)
	if strings.Contains(last.Stdout+last.Stderr, "In use by another client") {
		return fmt.Errorf("%s: In use by another client: %s", what, b.clients(ctx, n.Card, &gi))
	}
	return said(last, what)
}

// replaced tells whether the instance with a note's id, profile and place is another than the noted one: somebody destroyed that
// and made this in its place. One without a device counts as the noted one, which a release that broke off left like that.
func (b *Backend) replaced(ctx context.Context, n note, gi int) (bool, error) {
	if n.UUID == "" {
		return false, nil
	}
	now, err := b.device(ctx, n.Card, gi)
	switch {
	case errors.Is(err, errNoDevice):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whose GPU instance %d of %s is: %w", gi, n.Card, err)
	case now.Visible == n.UUID:
		return false, nil
	}
	b.warn("a GPU instance was destroyed and made anew by somebody else, it is left alone", "card", n.Card, "gi", gi, "was", n.UUID, "is", now.Visible)
	return true, nil
}

// anothers tells whether a note knows the instance by its id: then it came after the crash that left a note without one.
func anothers(all map[share.ID]note, card string, i instance) bool {
	for _, n := range all {
		if n.Card == card && n.GI != nil && n.names(i) {
			return true
		}
	}
	return false
}

// Reconcile destroys what is ours and not live, and tells the log of live shares whose instance is gone.
func (b *Backend) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	now, past, err := b.notes.all()
	problems := []error{err}
	for id := range past {
		problems = append(problems, b.notes.drop(id))
	}
	for id, n := range now {
		a, is := live[id]
		if !is {
			problems = append(problems, b.Release(ctx, id))
			continue
		}
		list, err := b.instances(ctx, n.Card)
		if err != nil {
			problems = append(problems, err)
		} else if !slices.ContainsFunc(list, n.names) {
			b.warn("a running task's GPU instance was destroyed by somebody else", "task_id", a.TaskID, "card", n.Card, "profile", n.Name)
		}
	}
	return errors.Join(problems...)
}
