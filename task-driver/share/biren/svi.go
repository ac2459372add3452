// Package biren divides Biren cards into the equal parts of the maker's SVI: a card is divided when its first share is made
// and made whole again after its last. Whatever else brsmi does is not public and not used.
package biren

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

var tools = []string{"brsmi", "/usr/local/birensupa/driver/bin/brsmi"}

// modes are the tool's numbers of a division, by how many parts it has: brsmi gpu set -s 0|1|2 -i N. Source: Project-HAMi's
// documentation of Biren.
var modes = map[int]string{1: "0", 2: "1", 4: "2"}

// SVI divides cards. The tool keeps no names: notes tell which cards we divided and which part is whose.
type SVI struct {
	host   share.Host
	shares share.Notes[part]
	cards  share.Notes[card]
}

// part is what is remembered of one share.
type part struct {
	Index int    `json:"index"` // of the card
	Parts int    `json:"parts"`
	Node  string `json:"node,omitempty"` // empty until the card is divided
}

// card is what is remembered of a card that we divide, from before the tool is called.
type card struct {
	Index  int      `json:"index"`
	Parts  int      `json:"parts"`
	Before []string `json:"before"`          // all nodes that there were
	Nodes  []string `json:"nodes,omitempty"` // of the parts; empty until they are known
}

// cardID is the key of a card's note.
func cardID(index int) share.ID { return share.ID("card-" + strconv.Itoa(index)) }

var _ share.Backend = (*SVI)(nil)

// New makes the backend.
func New(h share.Host) *SVI {
	brand := string(accel.Biren)
	return &SVI{host: h, shares: share.NotesOf[part](h, brand, accel.ModeSVI), cards: share.NotesOf[card](h, brand, accel.ModeSVI+"/cards")}
}

// Name is svi.
func (b *SVI) Name() string { return accel.ModeSVI }

// Vendor is Biren.
func (b *SVI) Vendor() accel.Vendor { return accel.Biren }

// Describe says what a part keeps apart.
func (b *SVI) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Gold, Memory: share.ByHardware, Compute: share.ByHardware, Faults: share.ByHardware, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "Halves or quarters, all of one card alike. A card is divided when it is idle and made whole after its last share; one that was divided by hand is left alone. A division outlives a restart of the machine. Which node a part has is not published: it is found by what appears in /dev/biren, and where that is not clear the card stays whole. Not tested on hardware by this project.",
		LimitsZH: "只能二等分或四等分，同一张卡各份相同。空闲时切分，最后一个切片释放后恢复整卡；人工切分的卡不会被改动。切分在重启后仍然保留。各实例的设备节点没有公开说明，由 /dev/biren 的变化推断，推断不清时保持整卡。本项目未在真实硬件上验证。",
	}
}

// Probe wants a tool that tells of SVI.
func (b *SVI) Probe(ctx context.Context) error {
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return fmt.Errorf("brsmi is not found: install the Biren driver, which brings /usr/local/birensupa/driver (%w)", err)
	}
	rows, err := b.query(ctx, tool)
	if err != nil {
		return fmt.Errorf("brsmi does not tell the cards' SVI mode: upgrade the Biren driver (%w)", err)
	}
	if len(rows) == 0 {
		return errors.New("brsmi lists no card with an SVI mode: load the driver (sudo modprobe biren), or upgrade it")
	}
	return nil
}

// row is what the tool tells of one card.
type row struct {
	Divided bool
	UsedMiB *uint64 // nil when it is not told
}

// parseRows reads lines such as "0, Disabled, 0": index, SVI mode, memory in use in MiB.
func parseRows(out string) map[int]row {
	rows := map[int]row{}
	for line := range strings.Lines(out) {
		cells := strings.Split(line, ",")
		if len(cells) != 3 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		index, err := strconv.ParseUint(cells[0], 10, 16)
		if err != nil || cells[1] != "Enabled" && cells[1] != "Disabled" {
			continue
		}
		r := row{Divided: cells[1] == "Enabled"}
		if used, err := strconv.ParseUint(cells[2], 10, 64); err == nil {
			r.UsedMiB = &used
		}
		rows[int(index)] = r
	}
	return rows
}

func (b *SVI) query(ctx context.Context, tool string) (map[int]row, error) {
	out, err := maker.Run(ctx, b.host.Tool, tool, "gpu", "--query-gpu=index,svi.mode.current,memory.used", "--format=csv,noheader,nounits")
	return parseRows(out), err
}

func (b *SVI) set(ctx context.Context, tool string, index, parts int) error {
	_, err := maker.Run(ctx, b.host.Tool, tool, "gpu", "set", "-s", modes[parts], "-i", strconv.Itoa(index))
	return err
}

// ruleOf is the rule of a card by its memory.
func ruleOf(c grant.Card) accel.Rounding {
	return accel.Rounding{Mode: accel.ModeSVI, Parts: 4, Templates: []accel.Template{
		{Name: "1-4-gpu", MemoryMiB: c.MemoryMiB / 4, Parts: 1, Max: 4}, {Name: "1-2-gpu", MemoryMiB: c.MemoryMiB / 2, Parts: 2, Max: 2},
	}}
}

// Prepare gives the task a part of the card, which is divided for it where it is whole.
func (b *SVI) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	if a.Card.MemoryMiB == 0 {
		return share.Setup{}, fmt.Errorf("the memory of card %s is not known, so that its parts are not: ask for the whole card", a.Card.UUID)
	}
	s, err := maker.Fit(ruleOf(a.Card), a)
	if err != nil {
		return share.Setup{}, err
	}
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return share.Setup{}, err
	}
	want := part{Index: a.Card.Index, Parts: 4 / s.Parts}
	node, err := b.give(ctx, tool, a.ID, want, event)
	if err != nil {
		undo, cancel := maker.Undoing(ctx)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
	}
	number := strings.TrimPrefix(node, nodeStem)
	return share.Setup{
		Env:     map[string]string{"BR_PHY_CARDS": "card_" + number},
		Visible: number, Nodes: []string{node}, Instead: true,
	}, nil
}

// give finds the node of the share's part.
func (b *SVI) give(ctx context.Context, tool string, id share.ID, want part, event func(string)) (string, error) {
	shares, err := b.shares.All()
	if err != nil {
		return "", err
	}
	if old, known := shares[id]; known && (old.Index != want.Index || old.Parts != want.Parts) {
		if err := b.Release(ctx, id); err != nil {
			return "", err
		}
		delete(shares, id)
	}
	held := map[string]bool{}
	others := 0
	for other, s := range shares {
		if other != id && s.Index == want.Index {
			others++
			held[s.Node] = true
		}
	}
	want.Node = shares[id].Node
	if err := b.shares.Put(id, want); err != nil {
		return "", err
	}
	c, err := b.divide(ctx, tool, want, others, event)
	if err != nil {
		return "", err
	}
	if want.Node != "" && slices.Contains(c.Nodes, want.Node) {
		return want.Node, nil
	}
	at := slices.IndexFunc(c.Nodes, func(node string) bool { return !held[node] })
	if at < 0 {
		return "", fmt.Errorf("all %d parts of card %d are held: it is tried again when one of their tasks has ended", c.Parts, want.Index)
	}
	want.Node = c.Nodes[at]
	event(fmt.Sprintf("part of card %d, one of %d: %s", want.Index, want.Parts, want.Node))
	return want.Node, b.shares.Put(id, want)
}

// Release gives the part back, and makes the card whole after the last.
func (b *SVI) Release(ctx context.Context, id share.ID) error {
	shares, err := b.shares.All()
	own, known := shares[id]
	if !known {
		return err
	}
	for other, s := range shares {
		if other != id && s.Index == own.Index {
			return b.shares.Drop(id)
		}
	}
	if err != nil {
		return err // one that cannot be read may be of the same card
	}
	if err := b.makeWhole(ctx, own.Index); err != nil {
		return err
	}
	return b.shares.Drop(id)
}

// Reconcile gives back parts that are not live, and makes cards whole that we divided for nobody.
func (b *SVI) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	shares, err := b.shares.All()
	if err != nil {
		return err
	}
	var problems []error
	used := map[int]bool{}
	for id, s := range shares {
		if _, is := live[id]; is {
			used[s.Index] = true
			continue
		}
		if err := b.Release(ctx, id); err != nil {
			problems = append(problems, err)
			used[s.Index] = true
		}
	}
	cards, err := b.cards.All()
	problems = append(problems, err)
	for _, c := range cards {
		if !used[c.Index] {
			problems = append(problems, b.makeWhole(ctx, c.Index))
		}
	}
	return errors.Join(problems...)
}
