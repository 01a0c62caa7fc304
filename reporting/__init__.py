"""Pages: findings in, figures and Markdown out. Every number on a page comes from a finding."""
