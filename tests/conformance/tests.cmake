set_tests_properties(conformance.drift PROPERTIES LABELS "conformance;long")
