package nomadplugin

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// TestContract compares every message, field, enum value and call of the compiled descriptors with the table that
// was itself compared with the descriptors compiled into Nomad. A difference either way fails.
func TestContract(t *testing.T) {
	t.Parallel()
	files := map[string]protoreflect.FileDescriptor{
		"base": basepb.File_nomadplugin_proto_base_proto, "hclspec": hclspec.File_nomadplugin_proto_hclspec_proto,
		"device": devicepb.File_nomadplugin_proto_device_proto, "driver": driverpb.File_nomadplugin_proto_driver_proto,
		"attribute": structspb.File_nomadplugin_proto_attribute_proto, "stats": structspb.File_nomadplugin_proto_stats_proto,
		"recoverable": structspb.File_nomadplugin_proto_recoverable_proto,
	}
	var got []string
	for name, file := range files {
		got = append(got, describe(name, file)...)
	}
	want := readContract(t)
	sort.Strings(got)
	sort.Strings(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wire contract (-want +got):\n%s", diff)
	}
}

func readContract(t *testing.T) []string {
	t.Helper()
	f, err := os.Open("proto/testdata/contract.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if line := sc.Text(); !strings.HasPrefix(line, "#") {
			rows = append(rows, line)
		}
	}
	return rows
}

func describe(name string, file protoreflect.FileDescriptor) []string {
	var rows []string
	row := func(cols ...string) {
		for i, c := range cols {
			if c == "" {
				cols[i] = "-"
			}
		}
		rows = append(rows, strings.Join(append([]string{name}, cols...), "\t"))
	}
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			row("rpc", string(s.Name()), string(m.Name()), streamed(m.IsStreamingClient(), m.Input()), streamed(m.IsStreamingServer(), m.Output()))
		}
	}
	enums := func(es protoreflect.EnumDescriptors) {
		for i := range es.Len() {
			for j := range es.Get(i).Values().Len() {
				v := es.Get(i).Values().Get(j)
				row("enum", string(es.Get(i).FullName()), string(v.Name()), fmt.Sprint(v.Number()), "")
			}
		}
	}
	var messages func(ms protoreflect.MessageDescriptors)
	messages = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			m := ms.Get(i)
			if m.IsMapEntry() {
				continue
			}
			enums(m.Enums())
			messages(m.Messages())
			if m.Fields().Len() == 0 {
				row("message", string(m.FullName()), "", "", "")
			}
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				row("field", string(m.FullName()), string(f.Name()), fmt.Sprint(f.Number()), fieldType(m, f))
			}
		}
	}
	enums(file.Enums())
	messages(file.Messages())
	return rows
}

func streamed(yes bool, m protoreflect.MessageDescriptor) string {
	if yes {
		return "stream " + string(m.Name())
	}
	return string(m.Name())
}

func fieldType(in protoreflect.MessageDescriptor, f protoreflect.FieldDescriptor) string {
	var typ string
	switch {
	case f.IsMap():
		typ = "map<" + scalarType(in, f.MapKey()) + "," + scalarType(in, f.MapValue()) + ">"
	case f.IsList():
		typ = "repeated " + scalarType(in, f)
	default:
		typ = scalarType(in, f)
	}
	if o := f.ContainingOneof(); o != nil {
		typ += " oneof " + string(o.Name())
	}
	return typ
}

// scalarType names a type as the table does: without the package when it is the message's own, and without the
// message when it is nested in it.
func scalarType(in protoreflect.MessageDescriptor, f protoreflect.FieldDescriptor) string {
	var full protoreflect.FullName
	switch f.Kind() {
	case protoreflect.MessageKind:
		full = f.Message().FullName()
	case protoreflect.EnumKind:
		full = f.Enum().FullName()
	default:
		return f.Kind().String()
	}
	name := strings.TrimPrefix(string(full), string(in.FullName())+".")
	return strings.TrimPrefix(name, string(in.ParentFile().Package())+".")
}

func TestGeneratedCodeIsCurrent(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("no sha256sum on PATH")
	}
	if out, err := exec.Command("sh", "proto/generate.sh", "-check").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
