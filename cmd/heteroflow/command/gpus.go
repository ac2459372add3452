package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func gpusCommand(env Env) *command {
	c := newCommand(env, "Show the cards, and what is free on them now", "")
	conn, out := c.withConnection(), c.withOutput()
	vendor := c.flags.String("vendor", "", "only cards of this `brand`")
	model := c.flags.String("model", "", "only models that fit this `pattern`, * for any text")
	node := c.flags.String("node", "", "only cards of this node, by `name` or id")
	free := c.flags.Bool("free", false, "only healthy cards with something free")
	names := make([]string, 0, len(accel.Vendors()))
	for _, v := range accel.Vendors() {
		names = append(names, string(v))
	}
	c.predict["vendor"] = complete.PredictSet(names...)
	c.run = func(ctx context.Context, _ []string) error {
		if *vendor != "" {
			if _, err := accel.ParseVendor(*vendor); err != nil {
				return &usageError{err.Error()}
			}
		}
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListGPUsWithResponse(ctx, &client.ListGPUsParams{
			Vendor: given(*vendor), Model: given(*model), Node: given(*node), Free: givenBool(*free),
		})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error { return c.printGPUs(out, list) })
	}
	return c
}

// given is nil for what was not given, which leaves a parameter out.
func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func givenBool(b bool) *bool {
	if !b {
		return nil
	}
	return &b
}

func (c *command) printGPUs(out *output, list *client.GPUList) error {
	cards, stale := list.Items, text(list.Stale)
	switch {
	case stale != "" && list.AsOf.Year() > 1:
		c.tell("This may be out of date: %s. It is from %s.", stale, moment(&list.AsOf))
	case stale != "":
		c.tell("The cards are not known yet: %s.", stale)
		return nil
	}
	if len(cards) == 0 {
		c.tell("No cards. \"heteroflow doctor\" says which nodes offer some, and why others do not.")
		return nil
	}
	order := map[string]int{}
	for i, v := range accel.Vendors() {
		order[string(v)] = i
	}
	slices.SortStableFunc(cards, func(a, b client.GPU) int {
		return cmp.Or(cmp.Compare(order[a.Vendor], order[b.Vendor]), cmp.Compare(a.Model, b.Model),
			cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Index, b.Index))
	})
	return c.printf("%s%s%s", modelTable(cards), section("Cards"), cardTable(out, cards))
}

// total is what the cards of one model have together.
type total struct {
	vendor, model         string
	cards, empty          int
	free, memory, largest uint64 // MiB
	slices, freeSlices    int
	memoryKnown           bool
}

func (t *total) add(g client.GPU) {
	t.cards++
	if !g.Healthy {
		return
	}
	if g.Units.Used == 0 {
		t.empty++
	}
	if g.Form != client.GPUForm("whole") {
		t.slices += g.Units.Total
		t.freeSlices += g.Units.Free
	}
	if g.Memory != nil {
		t.memoryKnown = true
		t.free += uint64(g.Memory.FreeMiB)
		t.memory += uint64(g.Memory.TotalMiB)
		t.largest = max(t.largest, uint64(g.Memory.FreeMiB))
	}
}

// modelTable adds up by brand and model: cards, empty ones, memory, the largest share that fits one card, slices.
func modelTable(cards []client.GPU) table {
	t := table{{"Brand", "Model", "Cards", "Empty", "Free Memory", "Largest Free", "Free Slices"}}
	var totals []*total
	for _, g := range cards {
		if n := len(totals); n == 0 || totals[n-1].vendor != g.Vendor || totals[n-1].model != g.Model {
			totals = append(totals, &total{vendor: g.Vendor, model: g.Model})
		}
		totals[len(totals)-1].add(g)
	}
	for _, m := range totals {
		memory, largest, slices := "-", "-", "-"
		if m.memoryKnown {
			memory = accel.FormatMiB(m.free) + " of " + accel.FormatMiB(m.memory)
			largest = accel.FormatMiB(m.largest)
		}
		if m.slices > 0 {
			slices = fmt.Sprintf("%d of %d", m.freeSlices, m.slices)
		}
		t.row(m.vendor, m.model, strconv.Itoa(m.cards), strconv.Itoa(m.empty), memory, largest, slices)
	}
	return t
}

func cardTable(out *output, cards []client.GPU) table {
	head := []string{"Card", "Model", "Node", "Form", "Free Memory", "Free Slices", "Health", "Jobs"}
	if *out.verbose {
		head = append(head, "UUID", "Device", "PCI", "NUMA", "Driver", "Modes")
	}
	t := table{head}
	for _, g := range cards {
		memory, slices, form := "-", "-", string(g.Form)
		switch {
		case g.Memory != nil && !g.Healthy:
			memory = "none of " + accel.FormatMiB(uint64(g.Memory.TotalMiB))
		case g.Memory != nil:
			memory = accel.FormatMiB(uint64(g.Memory.FreeMiB)) + " of " + accel.FormatMiB(uint64(g.Memory.TotalMiB))
		}
		if g.Form != client.GPUForm("whole") {
			slices = fmt.Sprintf("%d of %d", g.Units.Free, g.Units.Total)
		}
		if g.Switchable {
			form += " (auto)"
		}
		health := "ok"
		if !g.Healthy {
			health = cmp.Or(text(g.HealthReason), "bad")
		}
		row := []string{cardName(g), g.Model, cmp.Or(g.NodeName, out.id(g.NodeID)), form, memory, slices, health, dash(jobsOn(g.Jobs))}
		if *out.verbose {
			numa := ""
			if g.NUMANode != nil {
				numa = strconv.Itoa(*g.NUMANode)
			}
			row = append(row, g.UUID, g.Group, dash(text(g.PCIAddress)), dash(numa), dash(text(g.DriverVersion)), dash(strings.Join(g.Modes, ",")))
		}
		t.row(row...)
	}
	return t
}

// cardName is the brand and the number of a card. The parts of one card have its number, so that each has its own
// short name behind it.
func cardName(g client.GPU) string {
	name := fmt.Sprintf("%s/%d", g.Vendor, g.Index)
	if g.Form == client.GPUForm(accel.Partition) {
		name += "-" + accel.ShortID(accel.Vendor(g.Vendor), g.UUID)
	}
	return name
}

func jobsOn(uses []client.CardUse) string {
	var names []string
	for _, u := range uses {
		if !slices.Contains(names, u.JobID) {
			names = append(names, u.JobID)
		}
	}
	return strings.Join(names, ",")
}
