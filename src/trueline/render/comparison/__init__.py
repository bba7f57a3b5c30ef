"""A comparison as page, workbook, CSV and charts."""
