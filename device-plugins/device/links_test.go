package device

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// linked is a bench whose topology a test sets.
type linked struct {
	*bench

	lock  sync.Mutex
	text  string
	fails error
	block chan struct{} // when set, Links does not return before it is closed, whatever its context says
	reads chan int      // gets the number of cards of each reading
}

func (l *linked) Links(_ context.Context, cards []accel.Card) (topology.Graph, error) {
	l.reads <- len(cards)
	l.lock.Lock()
	block, text, fails := l.block, l.text, l.fails
	l.lock.Unlock()
	if block != nil {
		<-block
	}
	if text == "panic" {
		panic("the matrix is cursed")
	}
	g, err := topology.Parse(text)
	return g, errors.Join(err, fails)
}

func startLinked(t *testing.T, l *linked) *Plugin {
	t.Helper()
	l.reads = make(chan int, 100)
	p := start(t, nil, l.bench)
	p.build = func(Config) ([]Detector, error) { return []Detector{l}, nil }
	period := p.set.period
	if err := p.Use(p.set.Config); err != nil {
		t.Fatal(err)
	}
	p.set.period = period
	return p
}

// linksOf shows the attributes of the topology of each group that has one.
func linksOf(groups []*devicepb.DeviceGroup) map[string][3]string {
	out := map[string][3]string{}
	for _, g := range groups {
		text := func(name string) string { return g.Attributes[name].GetStringVal() }
		if all := [3]string{text(accel.AttrLinks), text(accel.AttrNIC), text(accel.AttrNICLink)}; all != [3]string{} {
			out[g.DeviceType+"/"+g.DeviceName] = all
		}
	}
	return out
}

// receiveLinks waits for a message with links in it.
func receiveLinks(t *testing.T, messages <-chan []*devicepb.DeviceGroup) map[string][3]string {
	t.Helper()
	for {
		if found := linksOf(receive(t, messages)); len(found) > 0 {
			return found
		}
	}
}

const pair = "card GPU-a\ncard GPU-b\nnic NIC0 name=mlx5_0\nlink GPU-a GPU-b nv12\nlink GPU-a NIC0 pix\nlink GPU-b NIC0 sys\n"

func TestFingerprint_LinksAreWithEachCardAndReadOnceForItsNeighbours(t *testing.T) {
	t.Parallel()
	a, b := good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")
	b.Index = 1
	l := &linked{bench: &bench{name: "x", cards: []accel.Card{a, b}}, text: pair}
	messages := fingerprint(t, startLinked(t, l))
	want := map[string][3]string{
		"card/A40-" + short("GPU-a"): {"c" + short("GPU-b") + ":nv12", "mlx5_0", "pix"},
		"card/A40-" + short("GPU-b"): {"c" + short("GPU-a") + ":nv12", "mlx5_0", "sys"},
	}
	if diff := cmp.Diff(want, receiveLinks(t, messages)); diff != "" {
		t.Error(diff)
	}
	if n := <-l.reads; n != 2 {
		t.Errorf("read with %d cards", n)
	}
	calls := 0
	l.bench.set(func(b *bench) { calls = b.calls })
	for now := calls; now < calls+5; { // five more readings of the cards
		l.bench.set(func(b *bench) { now = b.calls })
	}
	if len(l.reads) != 0 {
		t.Error("the topology was read again though no card came or went")
	}
	c := good("GPU-c", "0000:03:00.0")
	c.Index = 2
	l.lock.Lock()
	l.text += "card GPU-c\nlink GPU-a GPU-c phb\ncard GPU-of-another\nlink GPU-c GPU-of-another pix\n"
	l.lock.Unlock()
	l.bench.set(func(b *bench) { b.cards = append(b.cards, c) })
	if n := <-l.reads; n != 3 {
		t.Errorf("read with %d cards", n)
	}
	for {
		if got, ok := linksOf(receive(t, messages))["card/A40-"+short("GPU-c")]; ok {
			if want := ([3]string{"c" + short("GPU-a") + ":phb"}); got != want {
				t.Errorf("the new card has %v", got)
			}
			break
		}
	}
}

func TestFingerprint_TopologyThatHangsOrFailsChangesNothing(t *testing.T) {
	t.Parallel()
	cases := map[string]*linked{
		"hangs":  {block: make(chan struct{})},
		"fails":  {fails: errors.New("the tool says no")},
		"breaks": {text: "panic"},
	}
	for name, l := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if l.block != nil {
				t.Cleanup(func() { close(l.block) })
			}
			l.bench = &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0")}}
			messages := fingerprint(t, startLinked(t, l))
			<-l.reads
			wantLines(t, receive(t, messages), "nvidia/card/A40-"+short("GPU-a")+" [] ok", "nvidia/gpu/A40 [GPU-a] ok")
			l.bench.set(func(b *bench) { b.cards[0].Health = accel.Health{Reason: "hot"} })
			for { // the readings of the cards go on
				if got := lines(receive(t, messages)); got[1] == "nvidia/gpu/A40 [GPU-a(hot)] bad" {
					break
				}
			}
			if len(l.reads) != 0 {
				t.Error("the topology was read again")
			}
		})
	}
}

func TestFingerprint_WhatIsKnownOfTheTopologyIsOfferedBesideAnError(t *testing.T) {
	t.Parallel()
	l := &linked{bench: &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0")}}, text: pair, fails: errors.New("half of it")}
	if got := receiveLinks(t, fingerprint(t, startLinked(t, l)))["card/A40-"+short("GPU-a")]; got != [3]string{"", "mlx5_0", "pix"} {
		t.Errorf("got %v", got)
	}
}

func TestFingerprint_HalfAReadingOfTheTopologyDoesNotOutdoAWholeOne(t *testing.T) {
	t.Parallel()
	l := &linked{bench: &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")}}, text: pair}
	messages := fingerprint(t, startLinked(t, l))
	a, c := "card/A40-"+short("GPU-a"), "card/A40-"+short("GPU-c")
	before := receiveLinks(t, messages)[a]
	l.lock.Lock()
	l.text = "card GPU-a\ncard GPU-b\ncard GPU-c\nlink GPU-a GPU-b sys\nlink GPU-a GPU-c phb\n"
	l.fails = errors.New("the tool is gone")
	l.lock.Unlock()
	l.bench.set(func(b *bench) { b.cards = append(b.cards, good("GPU-c", "0000:03:00.0")) })
	for {
		found := linksOf(receive(t, messages))
		if _, ok := found[c]; ok {
			if found[a] != before {
				t.Errorf("the first card had %v, and has %v", before, found[a])
			}
			return
		}
	}
}

// A tool that cannot tell the topology when the plugin starts may tell it later, with the cards as they were.
func TestFingerprint_TheTopologyIsReadAgainWhereItFailed(t *testing.T) {
	t.Parallel()
	l := &linked{bench: &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0")}}, fails: errors.New("not yet")}
	messages := fingerprint(t, startLinked(t, l))
	<-l.reads
	l.lock.Lock()
	l.text, l.fails = pair, nil
	l.lock.Unlock()
	if got := receiveLinks(t, messages)["card/A40-"+short("GPU-a")]; got != [3]string{"", "mlx5_0", "pix"} {
		t.Errorf("got %v", got)
	}
}

// Who has an answer may ask again at once.
func TestGuarded_AnswersWhenItIsFree(t *testing.T) {
	t.Parallel()
	var busy atomic.Bool
	for range 2000 {
		if _, err := guarded(t.Context(), &busy, time.Minute, func(context.Context) (int, error) { return 0, nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNeighboursOf_PartitionsShareTheNetworkCardOfTheirBoard(t *testing.T) {
	t.Parallel()
	one, two, other := good("MIG-1", "0000:01:00.0"), good("MIG-2", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")
	one.Form, two.Form = accel.Partition, accel.Partition
	g, err := topology.Parse("card MIG-1\ncard MIG-2\ncard GPU-b\nnic mlx5_0 name=mlx5_0\nnic mlx5_1 name=mlx5_1\n" +
		"link MIG-1 mlx5_0 pix\nlink MIG-1 mlx5_1 pix\nlink MIG-2 mlx5_0 pix\nlink MIG-2 mlx5_1 pix\nlink MIG-1 GPU-b phb\nlink GPU-b mlx5_0 pix\nlink GPU-b mlx5_1 pix\n")
	if err != nil {
		t.Fatal(err)
	}
	got := neighboursOf(&g, []accel.Card{one, two, other})
	board := neighbours{nic: "mlx5_0", nicLink: "pix"}
	want := map[string]neighbours{"MIG-1": board, "MIG-2": board, "GPU-b": {nic: "mlx5_1", nicLink: "pix"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(neighbours{})); diff != "" {
		t.Error(diff)
	}
}

func TestOnce_ShowsLinks(t *testing.T) {
	t.Parallel()
	l := &linked{bench: &bench{name: "x", cards: []accel.Card{good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")}}, text: pair, reads: make(chan int, 1)}
	cfg := DefaultConfig()
	cfg.StateDir = t.TempDir()
	found, err := Once(t.Context(), cfg, func(Config) ([]Detector, error) { return []Detector{l}, nil }, hclog.NewNullLogger())
	if err != nil || len(found.Cards) != 2 {
		t.Fatalf("%+v, %v", found, err)
	}
	if c := found.Cards[0]; c.Links != "c"+short("GPU-b")+":nv12" || c.NIC != "mlx5_0" || c.NICLink != "pix" {
		t.Errorf("got %+v", c)
	}
}
