package engine

import (
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/links"
)

// LinkRow writes how a card is connected to the cards of its pool, in their order; a link that is not known, and the
// card's own place, stay empty: ",nv4,nv4,sys". Cards of nodes that are built alike so have equal rows.
func LinkRow(row []*accel.Link) string {
	texts := make([]string, len(row))
	known := false
	for i, l := range row {
		if l != nil {
			texts[i], known = l.String(), true
		}
	}
	if !known {
		return ""
	}
	return strings.Join(texts, ",")
}

// linked reports whether it is known how the cards of the pool are connected, so that it matters which of them a task
// takes.
func (p *Pool) linked() bool {
	if p.Form != accel.Whole || len(p.Cards) < 2 || len(p.Cards) > links.MaxCards {
		return false
	}
	for i := range p.Cards {
		if p.Cards[i].Links != "" {
			return true
		}
	}
	return false
}

// linkText adds how the cards of a linked pool are connected to a key: pools with equal texts have equal matrices.
func (p *Pool) linkText(key []byte) []byte {
	for i := range p.Cards {
		c := &p.Cards[i]
		key = text(text(key, c.Links), c.NICLink)
		numa := -1
		if c.NUMA != nil {
			numa = *c.NUMA
		}
		key = append(key, byte(numa+1), byte((numa+1)>>8))
	}
	return key
}

// matrix is how the cards of the pool are connected.
func (p *Pool) matrix() (links.Matrix, error) {
	names := [links.MaxCards]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"}
	cards := make([]links.Card, len(p.Cards))
	for i := range p.Cards {
		c := &p.Cards[i]
		cards[i] = links.Card{Peer: names[i], Links: map[string]accel.Link{}, NUMA: c.NUMA}
		for k, one := range strings.Split(c.Links, ",") {
			if k >= len(p.Cards) {
				break
			}
			if l, err := accel.ParseLink(one); err == nil {
				cards[i].Links[names[k]] = l
			}
		}
		if l, err := accel.ParseLink(c.NICLink); err == nil {
			cards[i].NIC = &l
		}
	}
	return links.MatrixOf(cards)
}

// linkBook keeps the rated matrices of pools, which are as few as kinds of machines. It is safe for concurrent use.
type linkBook struct {
	mu    sync.RWMutex
	boxes map[string]*links.Box
}

// mostBoxes bounds the book. One of a machine with 16 cards takes 1.5 MiB.
const mostBoxes = 256

// machines is shared by all engines, which are made anew with everything that is learnt: what is in it follows from its
// key alone.
var machines = &linkBook{boxes: map[string]*links.Box{}}

// box is the rated matrix of a linked pool. key is scratch, which is given back.
func (b *linkBook) box(p *Pool, key []byte) (*links.Box, []byte) {
	key = p.linkText(key[:0])
	b.mu.RLock()
	have := b.boxes[string(key)]
	b.mu.RUnlock()
	if have != nil {
		return have, key
	}
	m, err := p.matrix()
	if err != nil {
		return nil, key // too many cards, which linked has seen to
	}
	made := links.Rate(m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.boxes) >= mostBoxes {
		clear(b.boxes)
	}
	b.boxes[string(key)] = made
	return made, key
}

// box is the rated matrix of a pool, nil for one of which the links do not matter or are not known.
func (w *work) box(p *Pool) *links.Box {
	if !p.linked() {
		return nil
	}
	var b *links.Box
	b, w.linkKey = machines.box(p, w.linkKey)
	return b
}

// freeCards are the cards of a pool that nobody has, in their order. While a reservation is not seen as an allocation
// yet its cards may be among them: that many of the pool are counted as taken all the same.
func (w *work) freeCards(node, p int) links.Set {
	var free links.Set
	cards := w.pool(node, p).Cards
	for i := range cards[:min(len(cards), links.MaxCards)] {
		if cards[i].Healthy && cards[i].UsedUnits == 0 {
			free |= 1 << i
		}
	}
	return free &^ w.cards[p]
}

// seat chooses the cards of each item of a place; 0 for an item whose cards are Nomad's to choose.
func (w *work) seat(node int, items []item, picks []int) []links.Set {
	var out []links.Set
	for i, it := range items {
		set := w.seatOne(node, picks[i], it)
		if set == 0 {
			continue
		}
		if out == nil {
			out = make([]links.Set, len(items))
		}
		out[i] = set
		w.cards[picks[i]] |= set
	}
	return out
}

func (w *work) seatOne(node, p int, it item) links.Set {
	box := w.box(w.pool(node, p))
	if box == nil {
		return 0
	}
	free := w.freeCards(node, p)
	if it.option.keep != nil {
		named := it.option.keep[it.block].ids()
		if named == nil {
			return 0
		}
		free &= w.pool(node, p).among(named)
	}
	if w.within != 0 {
		free &= w.within
	}
	choice, ok := box.Choose(free, links.Ask{Cards: it.option.units, NIC: w.apart})
	if !ok {
		return 0
	}
	return choice.Cards
}

// unseat gives the cards of a place back.
func (w *work) unseat(b *binding) {
	for i, set := range b.cards {
		w.cards[b.picks[i]] &^= set
	}
}

// among are the cards of the pool with these names.
func (p *Pool) among(uuids []string) links.Set {
	var out links.Set
	for i := range p.Cards[:min(len(p.Cards), links.MaxCards)] {
		for _, id := range uuids {
			if p.Cards[i].UUID == id {
				out |= 1 << i
				break
			}
		}
	}
	return out
}

// uuidsOf are the names of cards of a pool.
func (p *Pool) uuidsOf(set links.Set) []string {
	var out []string
	for _, i := range set.Cards() {
		out = append(out, p.Cards[i].UUID)
	}
	return out
}

// blockOfTask is a device block by its task and its number there.
type blockOfTask struct{ task, block int }

// pins are the blocks that name their cards: of groups with one allocation and of gangs that are not elastic, where it matters which cards of
// the pools are taken. The blocks of other groups stay as they are when one more allocation is asked for, and a list of
// cards would not.
func (w *work) pins() map[blockOfTask]bool {
	if w.ask.Count != 1 && !w.ask.Gang || w.req.Gang != nil && w.req.Gang.Min > 0 {
		return nil
	}
	var matters, open map[blockOfTask]bool
	for i := range w.bound {
		b := &w.bound[i]
		for k, it := range b.items {
			at := blockOfTask{it.task, it.block}
			switch {
			case b.cards == nil || b.cards[k] == 0 || it.option.keep != nil:
				open = with(open, at)
			case it.option.units < len(w.pool(b.node, b.picks[k]).Cards):
				matters = with(matters, at)
			}
		}
	}
	for at := range open {
		delete(matters, at)
	}
	return matters
}

func with[K comparable](set map[K]bool, k K) map[K]bool {
	if set == nil {
		set = map[K]bool{}
	}
	set[k] = true
	return set
}

// ids are the cards that a block of a running plan names, nil when it names none.
func (b *Block) ids() []string {
	for _, a := range b.Allow {
		if a.Attribute == attrIDs {
			return a.Values
		}
	}
	return nil
}

// namedFree is how many of the cards that a block of a running plan names are free on a pool, all of its instances when
// it names none.
func (w *work) namedFree(node, p int, it item) int {
	if it.option.keep == nil {
		return w.free(node, p)
	}
	named := it.option.keep[it.block].ids()
	if named == nil {
		return w.free(node, p)
	}
	return (w.freeCards(node, p) & w.pool(node, p).among(named)).Len()
}

// linkPlugin rates the cards that a task would get by one thing: how they are connected, to each other and to a network
// card, and what they leave of pairs, rings and quads. Pools of which that is not known are all the same to it.
type linkPlugin struct {
	anybody
	name string
	part func(links.Rating) float64
	nic  bool // only where members talk to other nodes
}

var (
	_ ScorePlugin = linkPlugin{}
	_ concerned   = linkPlugin{}
)

// linkPlugins are the plugins of links, in the order in which they are asked.
func linkPlugins() []registered {
	one := func(name string, weight float64, nic bool, part func(links.Rating) float64) registered {
		return registered{linkPlugin{name: name, part: part, nic: nic}, PluginSetting{Name: name, Enabled: true, Weight: weight}}
	}
	return []registered{
		one("nvlink", 1, false, func(r links.Rating) float64 { return r.Links }),
		one("topology", 0.5, false, func(r links.Rating) float64 { return r.Whole }),
		one("rdma", 0.5, true, func(r links.Rating) float64 { return r.NIC }),
	}
}

func (p linkPlugin) Name() string { return p.name }

// concerned is a scorer that has nothing to say of some candidates: they are scored by the others alone.
type concerned interface{ Concerns(c *Candidate) bool }

// silent reports whether the scorer has nothing to say of the candidate.
func (s *scorer) silent(c *Candidate) bool {
	is, some := s.ScorePlugin.(concerned)
	return some && !is.Concerns(c)
}

func (p linkPlugin) Concerns(c *Candidate) bool {
	return c.Task.Ask.Whole() && (!p.nic || c.Group.Gang) && c.Pool.linked()
}

// Score is 100 where the node could give nothing better.
func (p linkPlugin) Score(c *Candidate) float64 {
	if !p.Concerns(c) {
		return 100
	}
	var key []byte
	if c.work != nil {
		key = c.work.linkKey
	}
	box, key := machines.box(c.Pool, key)
	if c.work != nil {
		c.work.linkKey = key
	}
	if box == nil {
		return 100
	}
	free := c.freeCards()
	choice, ok := box.Choose(free, links.Ask{Cards: c.Units, NIC: p.nic})
	if !ok {
		return 100
	}
	return 100 * p.part(box.Rating(free, choice.Cards))
}

// freeCards are the cards of the candidate's pool that nobody has.
func (c *Candidate) freeCards() links.Set {
	if c.work != nil {
		return c.work.freeCards(c.node, c.pool)
	}
	var free links.Set
	for i := range c.Pool.Cards[:min(len(c.Pool.Cards), links.MaxCards)] {
		if card := &c.Pool.Cards[i]; card.Healthy && card.UsedUnits == 0 {
			free |= 1 << i
		}
	}
	return free
}

func sameNumber(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }
