package nomadplugin

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// units are those the host accepts. Any other one makes it refuse the whole message.
var units = strings.Fields(`KiB MiB GiB TiB PiB EiB kB KB MB GB TB PB EB
	KiB/s MiB/s GiB/s TiB/s PiB/s EiB/s kB/s KB/s MB/s GB/s TB/s PB/s EB/s MHz GHz mW W kW MW GW`)

// validGroups copies the groups that the host takes, in a fixed order, and logs the others. One group the host
// refuses would cost the plugin its place until the agent restarts.
func validGroups(groups []*devicepb.DeviceGroup, log hclog.Logger) []*devicepb.DeviceGroup {
	names, ids := map[string]bool{}, map[string]bool{}
	var out []*devicepb.DeviceGroup
	for _, g := range groups {
		if err := checkGroup(g, names, ids); err != nil {
			log.Error("device group is not offered", "group", groupID(g), "error", err)
			continue
		}
		names[groupID(g)] = true
		for _, d := range g.GetDevices() {
			ids[d.GetID()] = true
		}
		g = proto.CloneOf(g)
		slices.SortFunc(g.Devices, func(a, b *devicepb.DetectedDevice) int { return cmp.Compare(a.ID, b.ID) })
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *devicepb.DeviceGroup) int { return cmp.Compare(groupID(a), groupID(b)) })
	return out
}

func groupID(g *devicepb.DeviceGroup) string {
	return g.GetVendor() + "/" + g.GetDeviceType() + "/" + g.GetDeviceName()
}

// checkGroup says why the host would refuse or confuse the group, given the names and ids already taken.
func checkGroup(g *devicepb.DeviceGroup, names, ids map[string]bool) error {
	switch {
	case g == nil:
		return fmt.Errorf("group is nil")
	case g.Vendor == "" || g.DeviceType == "" || g.DeviceName == "":
		return fmt.Errorf("vendor, type and name must not be empty")
	case strings.Contains(g.Vendor, "/") || strings.Contains(g.DeviceType, "/"):
		return fmt.Errorf("vendor and type must not contain a slash: no job could name the group")
	case names[groupID(g)]:
		return fmt.Errorf("another group has the same name")
	}
	own := map[string]bool{}
	for _, d := range g.Devices {
		switch {
		case d.GetID() == "":
			return fmt.Errorf("an instance has no id")
		case own[d.ID] || ids[d.ID]:
			return fmt.Errorf("instance id %q is used twice: ids must be unique in the plugin", d.ID)
		}
		own[d.ID] = true
	}
	for name, a := range g.Attributes {
		if err := checkAttribute(a); err != nil {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	return nil
}

func checkAttribute(a *structspb.Attribute) error {
	switch v := a.GetValue().(type) {
	case nil:
		return fmt.Errorf("has no value")
	case *structspb.Attribute_FloatVal:
		if math.IsNaN(v.FloatVal) || math.IsInf(v.FloatVal, 0) {
			return fmt.Errorf("is not a finite number")
		}
	case *structspb.Attribute_StringVal, *structspb.Attribute_BoolVal:
		if a.Unit != "" {
			return fmt.Errorf("has unit %q, which only a number may have", a.Unit)
		}
	}
	if a.Unit != "" && !slices.Contains(units, a.Unit) {
		return fmt.Errorf("has unknown unit %q: use one of %s, or none", a.Unit, strings.Join(units, " "))
	}
	return nil
}
