package engine_test

import (
	"testing"

	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/plugintest"
)

func TestPlugins_Conform(t *testing.T) {
	t.Parallel()
	for _, p := range engine.BuiltIn(engine.Config{}) {
		t.Run(p.Name(), func(t *testing.T) {
			t.Parallel()
			plugintest.Run(t, p)
		})
	}
	for _, p := range engine.BuiltIn(engine.Config{Learnt: engine.LearntSome(), Level: 2}) {
		t.Run(p.Name()+", learnt", func(t *testing.T) {
			t.Parallel()
			plugintest.Run(t, p)
		})
	}
}
