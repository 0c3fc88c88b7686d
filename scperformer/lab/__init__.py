"""For those who develop methods: mechanisms of attention, encoders of tokens and their training, analyses, benches."""
