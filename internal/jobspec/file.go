package jobspec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// fileFunctions read files, relative to the working folder as with the nomad command. Where files are not allowed they are there to say so.
func fileFunctions(allowed bool) map[string]function.Function {
	table := map[string]func(string) (string, error){
		"file": readFile, "filebase64": readBase64, "abspath": filepath.Abs, "pathexpand": expandHome,
	}
	out := map[string]function.Function{}
	for name, impl := range table {
		if !allowed {
			impl = func(string) (string, error) {
				return "", errors.New("files cannot be read on the server: submit the job with a command line, which reads them, or write the text into the job")
			}
		}
		out[name] = textFunction(impl)
	}
	if allowed {
		out["fileexists"], out["fileset"] = fileExists, fileSet
	}
	return out
}

func expandHome(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~")
	if !ok || (rest != "" && rest[0] != '/') {
		return path, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, rest), err
}

func readBytes(path string) ([]byte, error) {
	full, err := expandHome(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(full)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if info.Size() > MaxBytes || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: it is not a file of at most %d bytes", path, MaxBytes)
	}
	return os.ReadFile(full)
}

func readFile(path string) (string, error) {
	content, err := readBytes(path)
	return string(content), err
}

func readBase64(path string) (string, error) {
	content, err := readBytes(path)
	return base64.StdEncoding.EncodeToString(content), err
}

var fileExists = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "path", Type: cty.String}},
	Type:   function.StaticReturnType(cty.Bool),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		full, err := expandHome(args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		info, err := os.Stat(full)
		if errors.Is(err, fs.ErrNotExist) {
			return cty.False, nil
		}
		return cty.BoolVal(err == nil && info.Mode().IsRegular()), err
	},
})

// set lists the files under a folder that match a shell pattern, relative to the folder.
var fileSet = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "path", Type: cty.String}, {Name: "pattern", Type: cty.String}},
	Type:   function.StaticReturnType(cty.Set(cty.String)),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		root, err := expandHome(args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		found, err := filepath.Glob(filepath.Join(root, args[1].AsString()))
		if err != nil || len(found) == 0 {
			return cty.SetValEmpty(cty.String), err
		}
		names := make([]cty.Value, 0, len(found))
		for _, path := range found {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return cty.NilVal, err
			}
			names = append(names, cty.StringVal(filepath.ToSlash(name)))
		}
		return cty.SetVal(names), nil
	},
})
