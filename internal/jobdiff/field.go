package jobdiff

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// field compares two values as Nomad prints them. Equal ones are listed with context only, and never when neither
// side has a value.
func field(name, old, new string, anyKnown, context bool) []*api.FieldDiff {
	diff := &api.FieldDiff{Name: name, Old: old, New: new}
	switch {
	case old == new:
		if !context || !anyKnown {
			return nil
		}
		diff.Type = None
	case old == "":
		diff.Type = Added
	case new == "":
		diff.Type = Deleted
	default:
		diff.Type = Edited
	}
	return []*api.FieldDiff{diff}
}

// known reports whether a member has a value: a plain one always has, a pointer when it is not nil.
func known(v reflect.Value) bool { return follow(v).IsValid() }

// text prints a plain value; a missing one is the empty text. Durations are nanoseconds.
func text(v reflect.Value) string {
	v = follow(v)
	if !v.IsValid() {
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'f', -1, 64)
	}
	return fmt.Sprint(v.Interface())
}

// mapFields compares text by key: Env[PATH].
func mapFields(name string, old, new reflect.Value, context bool) (out []*api.FieldDiff) {
	for _, key := range mapKeys(old, new) {
		o, n := lookup(old, key), lookup(new, key)
		out = append(out, field(name+"["+key+"]", text(o), text(n), true, context)...)
	}
	return out
}

// setObject compares lists of text without their order, as an object with one field for each member.
func setObject(name string, old, new reflect.Value) []*api.ObjectDiff {
	olds, news := texts(old), texts(new)
	diff := &api.ObjectDiff{Name: name, Type: kindOf(len(olds) == 0, len(news) == 0)}
	changed := false
	members := slices.Concat(olds, news)
	slices.Sort(members)
	for _, member := range slices.Compact(members) {
		f := &api.FieldDiff{Name: name, Type: None, Old: member, New: member}
		switch {
		case !slices.Contains(olds, member):
			f.Type, f.Old, changed = Added, "", true
		case !slices.Contains(news, member):
			f.Type, f.New, changed = Deleted, "", true
		}
		diff.Fields = append(diff.Fields, f)
	}
	if !changed {
		return nil
	}
	sortFields(diff.Fields)
	return []*api.ObjectDiff{diff}
}

func texts(list reflect.Value) (out []string) {
	if list = follow(list); !list.IsValid() {
		return nil
	}
	for i := range list.Len() {
		out = append(out, text(list.Index(i)))
	}
	return out
}

// freeObject compares content of any shape, such as a driver's config, member by member: mounts[0].source.
func freeObject(name string, old, new reflect.Value) []*api.ObjectDiff {
	olds, news := map[string]string{}, map[string]string{}
	flatten("", old, olds)
	flatten("", new, news)
	diff := &api.ObjectDiff{Name: name, Type: kindOf(len(olds) == 0, len(news) == 0)}
	changed := false
	for _, key := range mapKeys(reflect.ValueOf(olds), reflect.ValueOf(news)) {
		for _, f := range field(key, olds[key], news[key], true, true) {
			changed = changed || f.Type != None
			diff.Fields = append(diff.Fields, f)
		}
	}
	if !changed {
		return nil
	}
	return []*api.ObjectDiff{diff}
}

func flatten(prefix string, v reflect.Value, out map[string]string) {
	v = follow(v)
	switch {
	case !v.IsValid():
	case v.Kind() == reflect.Map:
		for _, key := range v.MapKeys() {
			path := text(key)
			if prefix != "" {
				path = prefix + "." + path
			}
			flatten(path, v.MapIndex(key), out)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			flatten(prefix+"["+strconv.Itoa(i)+"]", v.Index(i), out)
		}
	default:
		out[prefix] = text(v)
	}
}
