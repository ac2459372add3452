package admission

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Plain reads what a job asks for by device blocks of its own, as jobspecs for other device plugins do: whole cards by
// the type gpu, slices of a card by vgpu. missing is how many allocations of each group are not placed; groups without
// an entry, or without such a block, are not in the request. It serves to find cards whose form keeps the job waiting:
// the blocks' constraints are not looked at, and placing stays Nomad's.
func Plain(job Tree, missing map[string]int) (r engine.Request, ok bool) {
	out := Strip(job)
	type where struct{ group, task string }
	drivers := map[where]string{}
	for _, g := range objects(out, "TaskGroups") {
		name := getString(g, "Name")
		if missing[name] > 0 {
			set(g, "Count", json.Number(strconv.Itoa(missing[name])))
		}
		for _, t := range objects(g, "Tasks") {
			config := map[string]any{}
			resources := getMap(t, "Resources")
			at := slices.IndexFunc(objects(resources, "Devices"), func(d map[string]any) bool { return plainAsk(d) != nil })
			if at >= 0 && missing[name] > 0 {
				config["accelerator"] = plainAsk(objects(resources, "Devices")[at])
			}
			drivers[where{name, getString(t, "Name")}] = getString(t, "Driver")
			unset(resources, "Devices")
			set(t, "Config", config)
			set(t, "Driver", Driver)
		}
	}
	reading, problems := Read(out)
	if len(problems) > 0 || !reading.Asks() || reading.Request.Loose != "" {
		return engine.Request{}, false
	}
	for i, g := range reading.Request.Groups {
		for j, t := range g.Tasks {
			reading.Request.Groups[i].Tasks[j].Driver = drivers[where{g.Name, t.Name}]
			reading.Request.Groups[i].Tasks[j].Runtime = ""
		}
	}
	return reading.Request, true
}

// plainAsk is a device block in the words of an accelerator block; nil for other devices.
func plainAsk(d map[string]any) map[string]any {
	parts := strings.SplitN(getString(d, "Name"), "/", 3)
	ask, kind := map[string]any{}, parts[0]
	if len(parts) > 1 {
		vendor, err := accel.ParseVendor(parts[0])
		if err != nil {
			return nil
		}
		ask["vendor"], kind = []any{string(vendor)}, parts[1]
	}
	count, written := integer(get(d, "Count"))
	if !written {
		count = 1
	}
	switch kind {
	case "gpu":
		ask["count"] = json.Number(strconv.FormatInt(count, 10))
		if len(parts) == 3 {
			ask["model"] = []any{parts[2]}
		}
	case "vgpu":
		if len(parts) == 3 {
			return nil // one card's own group: no other card will do
		}
		ask["memory"] = fmt.Sprintf("%dGiB", cmp.Or(count, 1)) // a slice is 1 GiB unless a node says otherwise
	default:
		return nil
	}
	return ask
}
