package openb

import (
	"encoding/csv"
	"io"
	"math"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// long runs the experiments on every list and seed, which takes minutes; otherwise one list and seed stand for them.
var long = os.Getenv("HETEROFLOW_OPENB_LONG") != ""

// lists are all pod lists.
var lists = []string{
	"default", "cpu037", "cpu050", "cpu072", "cpu100", "cpu235", "cpu250", "gpushare20", "gpushare40", "gpushare60",
	"gpushare100", "gpuspec05", "gpuspec10", "gpuspec20", "gpuspec33", "multigpu20", "multigpu30", "multigpu50",
}

// publishedSeeds are those of the published experiment, 42 to 51.
func publishedSeeds() []int64 {
	var seeds []int64
	for s := int64(42); s <= 51; s++ {
		seeds = append(seeds, s)
	}
	return seeds
}

func load(t testing.TB, list string) *Cluster {
	t.Helper()
	c, err := Load(os.DirFS("testdata"), list)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// published is the curve of a list, policy and seed as published, nil when there is none.
func published(t testing.TB) map[string]Curve {
	t.Helper()
	out := map[string]Curve{}
	err := open(os.DirFS("testdata"), "published_alloc.csv.gz", func(r io.Reader) error {
		rows, err := csv.NewReader(r).ReadAll()
		for _, row := range rows[1:] {
			var c Curve
			for i := range c {
				if c[i], err = strconv.ParseFloat(row[3+i], 64); err != nil {
					return err
				}
			}
			out[strings.Join(row[:3], " ")] = c
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLoad_TheClusterOfTheTrace(t *testing.T) {
	t.Parallel()
	c := load(t, "default")
	cores, memory, cards := 0, 0, 0
	for i := range c.Nodes {
		cores += int(c.Nodes[i].CPU)
		memory += int(c.Nodes[i].Memory)
		for _, card := range c.Nodes[i].Cards {
			cards += card.Milli()
		}
	}
	got := []int{len(c.Nodes), cards, cores / 1000, memory, len(c.Pods)}
	if diff := cmp.Diff([]int{1213, 6212000, 107018, 503828480, 8152}, got); diff != "" {
		t.Errorf("nodes, cards, cores, memory, pods (-want +got):\n%s", diff)
	}
}

// TestFill_ArrivalsAreThePublishedOnes: until a pod fails, the curve tells nothing but the order of arrival.
func TestFill_ArrivalsAreThePublishedOnes(t *testing.T) {
	t.Parallel()
	want := published(t)
	checked := 0
	for _, list := range pick(lists, "default") {
		if strings.HasPrefix(list, "gpuspec") {
			continue // pods that name few nodes fail early
		}
		for _, seed := range pick(publishedSeeds(), 43) {
			theirs, ok := want[strings.Join([]string{list, "BestFit", strconv.FormatInt(seed, 10)}, " ")]
			if !ok {
				continue
			}
			checked++
			ours := load(t, list).Fill(seed, potential.BestFit{})
			for at := range 61 { // nothing fails before 60 % with best fit
				if d := math.Abs(ours[at] - theirs[at]); d > 0.03 {
					t.Errorf("%s, seed %d at %d %%: %.3f, published %.2f", list, seed, at, ours[at], theirs[at])
					break
				}
			}
		}
	}
	if checked == 0 {
		t.Error("nothing was compared")
	}
}

func TestFill_FGDIsThePublishedOne(t *testing.T) {
	t.Parallel()
	want := published(t)
	checked := 0
	for _, list := range pick(lists, "default") {
		var ours, theirs [2]float64
		n := 0.0
		for _, seed := range pick(publishedSeeds(), 43) {
			curve, ok := want[strings.Join([]string{list, "FGD", strconv.FormatInt(seed, 10)}, " ")]
			if !ok {
				continue
			}
			c := load(t, list)
			got := c.Fill(seed, potential.NewFGD(c.Mix().Shares()))
			for i, at := range []int{100, 130} {
				ours[i] += got[at]
				theirs[i] += curve[at]
			}
			n++
		}
		for i := range ours {
			if d := math.Abs(ours[i]-theirs[i]) / n; d > 0.1 {
				t.Errorf("%s: %.2f, published %.2f", list, ours[i]/n, theirs[i]/n)
			}
		}
		checked += int(n)
	}
	if checked == 0 {
		t.Error("nothing was compared")
	}
}

// TestFill_LearntFromAShortHistory: requests of an earlier day, drawn by chance, are enough to know the demand.
func TestFill_LearntFromAShortHistory(t *testing.T) {
	t.Parallel()
	c := load(t, "default")
	r := rand.New(rand.NewSource(1))
	var m potential.Mix
	for range 300 {
		m.Observe(c.Pods[r.Intn(len(c.Pods))].Shape)
	}
	p := potential.NewPolicy()
	p.Learn(&m, c.Supply())
	const least = 95.8 // 95.3 by FGD that knows all
	if got := c.Fill(42, p); got[100] < least || got[130] < least {
		t.Errorf("allocated %.2f / %.2f %%, want at least %.2f", got[100], got[130], least)
	}
}

// pick is all of them in the long form, else the one.
func pick[T comparable](all []T, one T) []T {
	if long {
		return all
	}
	if !slices.Contains(all, one) {
		panic("not one of them")
	}
	return []T{one}
}
