package jobdiff

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// serverFields are members that the server writes, or that are shown elsewhere in the difference.
var serverFields = map[reflect.Type][]string{
	reflect.TypeFor[api.Job](): {
		"ID", "ParentID", "TaskGroups", "Update", "Migrate", "Reschedule", "Payload", "ConsulToken", "VaultToken", "ConsulNamespace",
		"VaultNamespace", "NomadTokenID", "Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex", "ModifyIndex",
		"JobModifyIndex", "VersionTag", "DispatchIdempotencyToken",
	},
	reflect.TypeFor[api.TaskGroup]():       {"Name", "Tasks"},
	reflect.TypeFor[api.Task]():            {"Name"},
	reflect.TypeFor[api.NetworkResource](): {"Device", "CIDR", "IP", "MBits"},
	reflect.TypeFor[api.UpdateStrategy]():  {"Stagger"},
	reflect.TypeFor[api.Service]():         {"Id"},
	reflect.TypeFor[api.ServiceCheck]():    {"Id"},
	reflect.TypeFor[api.ScalingPolicy]():   {"ID", "Namespace", "Target", "CreateIndex", "ModifyIndex"},
}

// objectNames are the names under which Nomad shows the elements of a list.
var objectNames = map[string]string{
	"Constraints": "Constraint", "Affinities": "Affinity", "Spreads": "Spread", "Services": "Service", "Checks": "Check",
	"Networks": "Network", "DynamicPorts": "Dynamic Port", "ReservedPorts": "Static Port", "Devices": "Device",
	"Artifacts": "Artifact", "Templates": "Template", "VolumeMounts": "VolumeMount", "Volumes": "Volume", "Identities": "Identity",
	"ScalingPolicies": "Scaling", "Actions": "Action", "Secrets": "Secret", "Upstreams": "ConsulUpstreams", "Links": "Link",
	"Regions": "Region", "Paths": "Path",
}

// keyFields are the members by which the elements of a list are matched between the versions. Elements of other
// lists have no identity: a changed one is shown as one deleted and one added.
var keyFields = map[reflect.Type]string{
	reflect.TypeFor[api.Service]():             "Name",
	reflect.TypeFor[api.ServiceCheck]():        "Name",
	reflect.TypeFor[api.Template]():            "DestPath",
	reflect.TypeFor[api.TaskArtifact]():        "RelativeDest",
	reflect.TypeFor[api.RequestedDevice]():     "Name",
	reflect.TypeFor[api.VolumeMount]():         "Destination",
	reflect.TypeFor[api.WorkloadIdentity]():    "Name",
	reflect.TypeFor[api.Action]():              "Name",
	reflect.TypeFor[api.Secret]():              "Name",
	reflect.TypeFor[api.ScalingPolicy]():       "Type",
	reflect.TypeFor[api.MultiregionRegion]():   "Name",
	reflect.TypeFor[api.SpreadTarget]():        "Value",
	reflect.TypeFor[api.ConsulUpstream]():      "DestinationName",
	reflect.TypeFor[api.ConsulExposePath]():    "Path",
	reflect.TypeFor[api.ConsulLinkedService](): "Name",
}

// parts compares the members of two structs given by pointers, either nil. With context it also lists members that
// are the same, which is how Nomad shows an object that has some change.
func parts(before, after reflect.Value, context bool) (fields []*api.FieldDiff, objects []*api.ObjectDiff) {
	before, after = follow(before), follow(after)
	t := typeOf(before, after)
	if t == nil {
		return nil, nil
	}
	for i := range t.NumField() {
		member := t.Field(i)
		if !member.IsExported() || slices.Contains(serverFields[t], member.Name) || member.Tag.Get("json") == "-" {
			continue
		}
		old, new := memberOf(before, i), memberOf(after, i)
		if t == portType && member.Name != "To" && noPort(old) && noPort(new) {
			continue
		}
		f, o := compare(member.Name, member.Type, old, new, context)
		fields, objects = append(fields, f...), append(objects, o...)
	}
	sortFields(fields)
	sortObjects(objectOrder[t], objects)
	return fields, objects
}

// objectOrder is the order in which Nomad 2.0.5 lists what a task and a group contain; the rest follows as it comes.
var objectOrder = map[reflect.Type][]string{
	reflect.TypeFor[api.TaskGroup](): {
		"Constraint", "Affinity", "RestartPolicy", "Migrate", "ReschedulePolicy", "EphemeralDisk", "Update", "Disconnect", "Network",
		"Scaling", "Service",
	},
	reflect.TypeFor[api.Task](): {
		"Constraint", "Affinity", "Config", "Resources", "LogConfig", "Artifact", "Service", "Template",
	},
}

func sortObjects(order []string, objects []*api.ObjectDiff) {
	if order == nil {
		return
	}
	rank := func(name string) int {
		if at := slices.Index(order, name); at >= 0 {
			return at
		}
		return len(order)
	}
	slices.SortStableFunc(objects, func(a, b *api.ObjectDiff) int { return cmp.Compare(rank(a.Name), rank(b.Name)) })
}

var portType = reflect.TypeFor[api.Port]()

// noPort reports whether a member of a port says nothing: the number of a port that Nomad chooses, and the switch
// that few use.
func noPort(v reflect.Value) bool {
	return !v.IsValid() || (v.IsZero() && (v.Kind() == reflect.Bool || v.Kind() == reflect.Int))
}

// follow gives what a pointer points to, and an invalid value for nil.
func follow(v reflect.Value) reflect.Value {
	for v.IsValid() && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) {
		v = v.Elem()
	}
	return v
}

func typeOf(before, after reflect.Value) reflect.Type {
	switch {
	case before.IsValid():
		return before.Type()
	case after.IsValid():
		return after.Type()
	}
	return nil
}

func memberOf(v reflect.Value, i int) reflect.Value {
	if !v.IsValid() {
		return reflect.Value{}
	}
	return v.Field(i)
}

// compare shows one member: a plain value as a field, text by key as one field for each key, the rest as objects.
func compare(name string, t reflect.Type, old, new reflect.Value, context bool) ([]*api.FieldDiff, []*api.ObjectDiff) {
	base := t
	if base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	switch {
	case base.Kind() == reflect.Struct:
		return nil, objectDiff(name, follow(old), follow(new))
	case t == reflect.TypeFor[map[string]string]():
		return mapFields(name, old, new, context), nil
	case base.Kind() == reflect.Map && isStruct(base.Elem()):
		return nil, mapObjects(objectName(name), old, new)
	case base.Kind() == reflect.Map, base.Kind() == reflect.Interface:
		return nil, freeObject(name, old, new)
	case base.Kind() == reflect.Slice && isStruct(base.Elem()):
		return nil, listObjects(objectName(name), old, new)
	case base.Kind() == reflect.Slice && base.Elem().Kind() != reflect.Uint8:
		return nil, setObject(name, old, new)
	}
	return field(name, text(old), text(new), known(old) || known(new), context), nil
}

func isStruct(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || (t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct)
}

func objectName(member string) string {
	if name, ok := objectNames[member]; ok {
		return name
	}
	return member
}

// objectDiff compares two structs as one object; nothing when they are the same.
func objectDiff(name string, old, new reflect.Value) []*api.ObjectDiff {
	if !old.IsValid() && !new.IsValid() {
		return nil
	}
	if fields, objects := parts(old, new, false); len(fields)+len(objects) == 0 && old.IsValid() == new.IsValid() {
		return nil
	}
	diff := &api.ObjectDiff{Name: name, Type: kindOf(!old.IsValid(), !new.IsValid())}
	diff.Fields, diff.Objects = parts(old, new, true)
	return []*api.ObjectDiff{diff}
}

// listObjects compares two lists of structs by the key of their type, or as sets when it has none.
func listObjects(name string, old, new reflect.Value) []*api.ObjectDiff {
	olds, news := elements(old), elements(new)
	key := func(v reflect.Value) string {
		member, keyed := keyFields[v.Type()]
		if !keyed {
			return identity(v)
		}
		return text(v.FieldByName(member))
	}
	return matched(name, olds, news, key)
}

func elements(list reflect.Value) (out []reflect.Value) {
	if list = follow(list); !list.IsValid() {
		return nil
	}
	for i := range list.Len() {
		if element := follow(list.Index(i)); element.IsValid() {
			out = append(out, element)
		}
	}
	return out
}

// identity is the whole content of an element as text.
func identity(v reflect.Value) string {
	content, err := json.Marshal(v.Interface())
	if err != nil { // only for values that no job has, such as channels
		return fmt.Sprint(v.Interface())
	}
	return string(content)
}

// matched pairs elements of equal keys in order, so that two with one key are compared one by one.
func matched(name string, olds, news []reflect.Value, key func(reflect.Value) string) (out []*api.ObjectDiff) {
	rest := map[string][]reflect.Value{}
	for _, v := range olds {
		rest[key(v)] = append(rest[key(v)], v)
	}
	for _, v := range news {
		old := reflect.Value{}
		if k := key(v); len(rest[k]) > 0 {
			old, rest[k] = rest[k][0], rest[k][1:]
		}
		out = append(out, objectDiff(name, old, v)...)
	}
	for _, v := range olds {
		if k := key(v); len(rest[k]) > 0 && rest[k][0] == v {
			out = append(out, objectDiff(name, v, reflect.Value{})...)
			rest[k] = rest[k][1:]
		}
	}
	return out
}

// mapObjects compares structs that stand in a map under their name.
func mapObjects(name string, old, new reflect.Value) (out []*api.ObjectDiff) {
	for _, key := range mapKeys(old, new) {
		out = append(out, objectDiff(name, follow(lookup(old, key)), follow(lookup(new, key)))...)
	}
	return out
}

func lookup(m reflect.Value, key string) reflect.Value {
	if !m.IsValid() || m.IsNil() {
		return reflect.Value{}
	}
	return m.MapIndex(reflect.ValueOf(key))
}

func mapKeys(maps ...reflect.Value) (keys []string) {
	for _, m := range maps {
		if !m.IsValid() {
			continue
		}
		for _, key := range m.MapKeys() {
			keys = append(keys, key.String())
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func sortFields(fields []*api.FieldDiff) {
	slices.SortStableFunc(fields, func(a, b *api.FieldDiff) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Old, b.Old))
	})
}
