// Package brandtest plays makers' tools and machines for the tests of brands: a tool that prints recorded output, a bus
// with cards on it, and what must hold for every reading of any text. What a brand's tool prints is tested with the
// brand.
package brandtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Recorded is one of the recorded outputs in testdata.
func Recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Files writes files of a machine under root; a path that ends in "/driver" becomes a link to the driver named.
func Files(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if filepath.Base(name) == "driver" {
			err = os.Symlink("../../../bus/pci/drivers/"+body, path)
		} else {
			err = os.WriteFile(path, []byte(body+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Bus puts a card on the bus of the machine under root. The revision ff is a card that does not answer, an empty driver
// none.
func Bus(t testing.TB, root, address, vendor, dev, driver, revision string) {
	t.Helper()
	dir := "sys/bus/pci/devices/" + address + "/"
	files := map[string]string{
		dir + "vendor": "0x" + vendor, dir + "device": "0x" + dev, dir + "class": "0x120000", dir + "revision": "0x" + revision,
		dir + "numa_node": "1",
	}
	if driver != "" {
		files[dir+"driver"] = driver
	}
	Files(t, root, files)
}

// Line is what a reading knows of one card, on one line; a question mark is unknown.
func Line(c brand.Card) string {
	parts := []string{show(c.Index), orUnknown(c.Name), orUnknown(c.PCI)}
	if c.ID != "" {
		parts = append(parts, "id="+c.ID)
	}
	if c.Part != "" {
		parts = append(parts, "part="+c.Part)
	}
	parts = append(
		parts, show(c.MemoryUsedMiB)+"/"+show(c.MemoryMiB)+"MiB", show(c.UtilizationPct)+"%", show(c.TemperatureC)+"C",
		show(c.PowerW)+"/"+show(c.PowerLimitW)+"W",
	)
	if c.Dead != "" {
		parts = append(parts, "dead: "+c.Dead)
	}
	return strings.Join(parts, " ")
}

// More is the numbers of a card that Line does not show, as name=value in the order of the names of device.Sample.
func More(c brand.Card) string {
	var parts []string
	for v, i := reflect.ValueOf(c.More), 0; i < v.NumField(); i++ {
		switch f := v.Field(i).Interface().(type) {
		case *float64:
			if f != nil {
				parts = append(parts, fmt.Sprintf("%s=%v", v.Type().Field(i).Name, *f))
			}
		case *bool:
			if f != nil {
				parts = append(parts, fmt.Sprintf("%s=%v", v.Type().Field(i).Name, *f))
			}
		}
	}
	return strings.Join(parts, " ")
}

// WantMore compares what More shows of the first cards of a recorded output.
func WantMore(t testing.TB, parse func(string) brand.Reading, want map[string][]string) {
	t.Helper()
	for file, lines := range want {
		cards := parse(Recorded(t, file)).Cards
		var got []string
		for i := range min(len(lines), len(cards)) {
			got = append(got, More(cards[i]))
		}
		if diff := cmp.Diff(lines, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// WantLink asks a brand for its links by a tool that answers one call, and compares the link of two labels.
func WantLink(t testing.TB, spec brand.Spec, args, says, a, b, want string) {
	t.Helper()
	g, err := spec.Links(spec.Tools[0], func(got ...string) (string, error) {
		if strings.Join(got, " ") != args {
			return "", fmt.Errorf("no answer to %v", got)
		}
		return says, nil
	})
	if e, ok := g.Edge(a, b); err != nil || !ok || e.Link.String() != want {
		t.Errorf("%s and %s: %+v, %v; want %s", a, b, e, err, want)
	}
	if _, err := spec.Links(spec.Tools[0], func(...string) (string, error) { return "unknown command", nil }); !errors.Is(err, topology.ErrNoMatrix) {
		t.Errorf("a tool that does not tell: %v", err)
	}
}

func show[T any](v *T) string {
	if v == nil {
		return "?"
	}
	return fmt.Sprint(*v)
}

func orUnknown(s string) string {
	if s == "" {
		return "?"
	}
	return s
}

// Want compares the cards of a reading, line by line.
func Want(t testing.TB, r brand.Reading, want ...string) {
	t.Helper()
	got := []string{}
	for _, c := range r.Cards {
		got = append(got, Line(c))
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
}

// WantFacts compares the named facts of a card; a fact that is wanted empty must not be there.
func WantFacts(t testing.TB, facts, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for name := range want {
		got[name] = facts[name]
	}
	if diff := cmp.Diff(want, got); diff != "" && len(want) > 0 {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// WantCards compares what a detector finds: index, device id, identity, memory and health of each card.
func WantCards(t testing.TB, d device.Detector, want ...string) []accel.Card {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cards, err := d.Detect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, c := range cards {
		state := "ok"
		if !c.Health.OK {
			state = c.Health.Reason
		}
		got = append(got, fmt.Sprintf("%d %s %s %s %s", c.Index, c.DeviceID(), c.UUID, show(c.MemoryMiB), state))
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
	return cards
}

// Fuzz feeds a parser with all that was recorded and what is made of it: whatever is printed, reading it ends, the same
// text is read the same way, and what is read can become cards.
func Fuzz(f *testing.F, spec brand.Spec, parse func(string) brand.Reading) {
	f.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		f.Add(Recorded(f, filepath.Base(file)))
	}
	f.Fuzz(func(t *testing.T, out string) {
		r := parse(out)
		seen := map[string]bool{}
		cards := r.Offer(spec)
		for _, c := range cards {
			if c.UUID == "" {
				continue
			}
			if seen[c.UUID] {
				t.Errorf("two cards have the identity %q", c.UUID)
			}
			seen[c.UUID] = true
			if c.UUID[0] < 'A' || c.UUID[0] > 'z' {
				t.Errorf("identity %q does not start with a letter", c.UUID)
			}
			if c.Model == "" || c.Vendor != spec.Vendor || c.Health.OK == (c.Health.Reason != "") {
				t.Errorf("card %+v", c)
			}
		}
		if diff := cmp.Diff(cards, parse(out).Offer(spec)); diff != "" {
			t.Errorf("two readings of one text differ:\n%s", diff)
		}
	})
}
